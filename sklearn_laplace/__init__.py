"""Neural nets on tables with error bars that can be trusted: the Laplace approximation the scikit-learn way."""

__version__ = "0.1.0"
