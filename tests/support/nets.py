"""User-defined modules for the tests, importable so that they can be pickled, and options of a quick fit."""

import torch
from skorch import NeuralNetBinaryClassifier, NeuralNetClassifier, NeuralNetRegressor
from torch import nn

QUICK = {
    "hidden_layer_sizes": (3,),
    "hessian_structure": "full",
    "prior_precision": 1.0,
    "n_members": 1,
    "random_state": 0,
}
"""Options of the built-in net for a quick fit."""


class Linear(nn.Module):
    def __init__(self, in_features=4, out_features=1):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)

    def forward(self, x):
        return self.linear(x)


class Hidden(nn.Module):
    def __init__(self, n_in=2, n_out=1, hidden=8, dropout=0.0, norm=False):
        super().__init__()
        self.hidden = nn.Linear(n_in, hidden)
        self.norm = nn.BatchNorm1d(hidden) if norm else nn.Identity()
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(hidden, n_out)

    def forward(self, x):
        return self.out(self.dropout(torch.tanh(self.norm(self.hidden(x)))))


class Probabilities(Hidden):
    def forward(self, x):
        return super().forward(x).softmax(-1)


class LogProbabilities(Hidden):
    def forward(self, x):
        return super().forward(x).log_softmax(-1)


class NoSizes(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, 1)

    def forward(self, x):
        return self.linear(x)


def regressor(module=Hidden, **options):
    defaults = {"max_epochs": 20, "lr": 0.05, "optimizer": torch.optim.Adam, "train_split": None, "verbose": 0}
    return NeuralNetRegressor(module, **{**defaults, **options})


def binary(module=Hidden, **options):
    defaults = {"max_epochs": 20, "lr": 0.05, "optimizer": torch.optim.Adam, "train_split": None, "verbose": 0}
    return NeuralNetBinaryClassifier(module, **{**defaults, **options})


def classifier(module=Probabilities, **options):
    defaults = {"max_epochs": 20, "lr": 0.05, "optimizer": torch.optim.Adam, "train_split": None, "verbose": 0}
    return NeuralNetClassifier(module, **{**defaults, **options})
