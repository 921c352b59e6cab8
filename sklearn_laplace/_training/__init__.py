"""Training of nets: the MAP stage of a single net, and the joint training of ensemble members."""
