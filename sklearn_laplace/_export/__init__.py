"""Saved files and ONNX graphs."""
