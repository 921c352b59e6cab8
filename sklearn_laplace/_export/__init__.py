"""Export to files, ONNX and BoTorch."""
