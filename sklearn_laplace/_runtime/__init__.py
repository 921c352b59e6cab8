"""Memory, time, threads, devices and progress of a fit."""
