"""Devices that are not available on the machine are replaced by the CPU."""

import pytest
import torch

from sklearn_laplace.laplace.torch_state import AVAILABLE, present_device


@pytest.mark.parametrize("kind", ["cuda", "mps", "xpu"])
def test_only_an_available_kind_of_device_is_kept(kind, monkeypatch):
    for present in (False, True):
        monkeypatch.setitem(AVAILABLE, kind, lambda present=present: present)
        assert present_device(f"{kind}:1") == torch.device(f"{kind}:1" if present else "cpu")
    assert present_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize("name", ["meta", "cuda:12345", "gpu", 3])
def test_other_names_are_refused(name):
    with pytest.raises(ValueError, match=r"is not the name of a device; expected 'cpu', 'cuda'"):
        present_device(name)
