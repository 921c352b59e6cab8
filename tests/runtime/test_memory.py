"""What a pass over the data holds: the structure and one chunk, however many rows there are, within the budget."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import textwrap

import nets
import numpy as np
import pytest
import torch
from joblib import Memory
from sklearn.frozen import FrozenEstimator

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor
from sklearn_laplace._runtime import memory as _memory
from sklearn_laplace._runtime.memory import MemoryBudget
from sklearn_laplace.errors import MemoryBudgetError
from sklearn_laplace.laplace.network import trace
from sklearn_laplace.laplace.structures import STRUCTURES

ONE = torch.ones(1, 3)
RNG = np.random.default_rng(59)
X = RNG.normal(size=(60, 3))
Y = np.sin(X[:, 0]) + X[:, 1] + 0.2 * RNG.normal(size=60)
LABELS = (X[:, 0] > 0).astype(int)
SMALL = {"hidden_layer_sizes": (20,), "map_prior_precision": 1.0, "random_state": 0}


PEAK = '''
from pathlib import Path

def peak():
    """Largest resident size, MB; that of ``getrusage`` begins with the size of whoever started the process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024
'''
on_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


def run(script: str) -> str:
    """What a process of its own prints, whose memory can be measured by ``peak``."""
    script = PEAK + textwrap.dedent(script)
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stderr
    return found.stdout


def test_a_chunk_leaves_nothing_for_the_garbage_collector():
    """Tensors in a cycle live on for hundreds of chunks: memory would grow with the rows."""
    network = trace(torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)), ONE)
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        outputs, jacobian = network.jacobian(ONE)
        del outputs, jacobian
        gc.collect()
        left = [type(value).__name__ for value in gc.garbage if isinstance(value, torch.Tensor)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert not left


@on_linux
@pytest.mark.parametrize("structure", ["diag", "kron", "full", "low_rank", "functional"])
def test_ten_times_the_rows_take_no_more_memory(structure):
    """Rows that are generated a chunk at a time: their Jacobian has 460 MB, of which the peak grows by a tenth at most.

    An allocator's slack after a thousand chunks is what is left of it. "functional", which keeps the rows, does grow:
    what is measured can tell.
    """
    script = f"""
    import torch
    from sklearn_laplace.laplace.curvatures import GGN
    from sklearn_laplace.laplace import fit_laplace
    from sklearn_laplace.laplace.likelihoods import Gaussian
    from sklearn_laplace.laplace.network import trace
    from sklearn_laplace.laplace.structures import STRUCTURES

    torch.set_num_threads(1)
    module = torch.nn.Sequential(torch.nn.Linear(8, 20), torch.nn.Tanh(), torch.nn.Linear(20, 1))
    network = trace(module, torch.zeros(3, 8))

    def rows(n, step=4096):
        for start in range(0, n, step):
            x = torch.randn(min(step, n - start), 8)
            yield x, x[:, :1], torch.ones(len(x))

    def after(n):
        fit = fit_laplace(network, Gaussian(), GGN(), STRUCTURES["{structure}"], network.scalar_prior(), rows(n))
        assert fit.total_weight == n
        return peak()

    first = after(60_000)
    print(after(600_000) - first)
    """
    assert (float(run(script)) < 46) == (structure != "functional")


@on_linux
def test_a_small_budget_bounds_the_peak_and_changes_nothing():
    """Images of which 64 at once, the usual chunk, take some 200 MB; with 20 MB they come two at a time."""

    def measured(budget):
        script = f"""
        import json, numpy as np, torch
        from sklearn.frozen import FrozenEstimator
        from skorch import NeuralNetClassifier
        from sklearn_laplace import LaplaceClassifier
        from torch import nn

        torch.set_num_threads(1)
        torch.manual_seed(0)
        module = nn.Sequential(
            nn.Unflatten(1, (3, 32, 32)), nn.Conv2d(3, 32, 3), nn.Tanh(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
            nn.Linear(32, 6),
        )
        net = FrozenEstimator(NeuralNetClassifier(module, train_split=None, verbose=0).initialize())
        X, y = np.random.default_rng(0).normal(size=(130, 3072)), np.arange(130) % 6
        model = LaplaceClassifier(net, hessian_structure="diag", memory_budget={budget!r}, random_state=0)
        model.set_params(memory_budget="20MB").fit(X[:6], y[:6]).predict_std(X[:6])
        base = peak()
        std = model.set_params(memory_budget={budget!r}).fit(X, y).predict_std(X)
        print(json.dumps([peak() - base, std.tolist()]))
        """
        return json.loads(run(script))

    (usual, expected), (small, found) = measured(None), measured("20MB")
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    assert small < 45  # with the data, three times 3 MB, and what the allocator keeps
    assert usual > 5 * small


@pytest.mark.parametrize("structure", sorted(STRUCTURES))
def test_chunks_of_a_few_rows_give_the_same_answers(structure, monkeypatch):
    """Fit, more rows, predictions: to rounding, both kinds. As if a row took a megabyte for every element."""
    steps = []
    usual = MemoryBudget.chunk_rows
    for model, y in ((LaplaceRegressor(**SMALL), Y), (LaplaceClassifier(**SMALL), LABELS)):
        model.set_params(hessian_structure=structure, prior_precision=1.0, hidden_layer_sizes=(8,))
        answers = [model.fit(X, y).predict_std(X), model.partial_fit(X[:9] + 1, y[:9]).predict_std(X)]
        with monkeypatch.context() as patch:
            patch.setattr(_memory, "ROW_BYTES", 10**6)
            patch.setattr(MemoryBudget, "chunk_rows", lambda *args: steps.append(usual(*args)) or steps[-1])
            model.set_params(memory_budget="350MB")
            found = [model.fit(X, y).predict_std(X), model.partial_fit(X[:9] + 1, y[:9]).predict_std(X)]
        np.testing.assert_allclose(found, answers, rtol=1e-6)
    assert 1 <= min(steps) <= max(steps) < 20


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits of the address space as on Linux")
def test_memory_that_runs_out_is_reported_with_the_budget():
    """A process at the end of its address space: fit (torch) and prediction, and the estimator is as it was."""
    run("""
        import os, resource
        import numpy as np
        from sklearn_laplace import LaplaceRegressor
        from sklearn_laplace.errors import MemoryBudgetError

        X = np.random.default_rng(0).normal(size=(2000, 20))
        y = np.sin(X[:, 0])
        given = {"n_members": 1, "prior_precision": 1.0, "sigma_noise": 0.1, "max_epochs": 1, "random_state": 0}
        small = LaplaceRegressor(**given, hidden_layer_sizes=(20,)).fit(X[:50], y[:50])
        wide = LaplaceRegressor(**given, hidden_layer_sizes=(100,), hessian_structure="full", memory_budget="4GB")
        expected, far = small.predict_std(X[:5]), np.zeros((20_000, 20))
        used = int(open("/proc/self/statm").read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (used + 5 * 10**7, resource.RLIM_INFINITY))
        messages = []
        for model, call in (
            (wide, lambda: wide.fit(X, y)),
            (small, lambda: small.predict(far, return_cov=True)),
            (small, lambda: small.sample_y(far, 1000)),
        ):
            before = set(vars(model))
            try:
                call()
            except MemoryBudgetError as error:
                messages.append(str(error))
                assert isinstance(error, MemoryError) and error.__cause__ is not None
            assert set(vars(model)) == before
        assert len(messages) == 3, messages
        assert all("memory ran out (" in one and "a smaller memory_budget" in one for one in messages), messages
        assert "though memory_budget allows 4.0 GB" in messages[0], messages
        np.testing.assert_array_equal(small.predict_std(X[:5]), expected)
    """)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError(), "memory ran out, though"),
        (RuntimeError("[enforce fail at x.cpp:1] . DefaultCPUAllocator: can't allocate memory: 8 bytes."), "(Default"),
        (SystemError("error return without exception set"), "memory ran out (error return"),
        (torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nMore"), "allocate 2 GiB),"),
    ],
)
def test_only_failed_allocations_are_errors_of_memory(error, said):
    """Of numpy, of torch, of a GPU; the budget's own error and anything else pass."""
    with pytest.raises(MemoryBudgetError) as caught, _memory.naming_the_budget(None):
        raise error
    assert said in str(caught.value) and "this process may use" in str(caught.value)
    for other in (RuntimeError("a bug"), MemoryBudgetError("as it is"), ValueError("out of memory")):
        with pytest.raises(type(other)) as caught, _memory.naming_the_budget(None):
            raise other
        assert caught.value is other


# ---------------------------------------------------------------------- the parameter


@pytest.mark.parametrize(
    ("value", "size"),
    [(1, 1), (2_000_000, 2_000_000), (2e9, 2 * 10**9), ("500MB", 500_000_000), (" 1.5 GiB ", 3 * 2**29), ("3kb", 3000)],
)
def test_a_budget_is_bytes_or_a_string_with_a_unit(value, size):
    """In powers of ten, or of two with an i."""
    assert MemoryBudget.of(value) == MemoryBudget(size, by_user=True)


@pytest.mark.parametrize("value", [0, -1, 0.5, True, "2", "GB", "2 parsecs", "-2GB", float("nan"), float("inf"), [1]])
def test_a_wrong_budget_is_refused(value):
    """What was given and what it may be."""
    for model, y in ((LaplaceRegressor(memory_budget=value), Y), (LaplaceClassifier(memory_budget=value), LABELS)):
        with pytest.raises(ValueError, match=r"memory_budget=.* has to be None, a number of bytes of at least 1, or a"):
            model.fit(X, y)


def groups(root, lines, **limits):
    """A tree of control groups, "/" of a name written "__"."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text("".join(f"{line}\n" for line in lines))
    for name, limit in limits.items():
        path = root / "sys/fs/cgroup" / name.replace("__", "/").replace("memory_", "memory.", 1)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{limit}\n")


V2, V1 = "0::/pod/box", "4:memory,hugetlb:/docker/abc"
UNLIMITED = 9223372036854771712


@pytest.mark.parametrize(
    ("lines", "limits", "expected"),
    [
        ([V2], {"pod__box__memory_max": 5000}, 5000),
        ([V2], {"pod__memory_max": 4000, "pod__box__memory_max": 5000}, 4000),
        ([V2], {"pod__memory_max": 4000, "pod__box__memory_max": "max"}, 4000),
        ([V2], {"memory_max": 3000, "pod__memory_max": 4000}, 3000),
        (["0::/"], {"memory_max": 3000}, 3000),
        (["0::/../other"], {"memory_max": 3000}, 3000),
        (["3:cpu:/x", V1, "0::/"], {"memory__docker__abc__memory_limit_in_bytes": 2000}, 2000),
        ([V1], {"memory__memory_limit_in_bytes": 1000, "memory__docker__memory_limit_in_bytes": UNLIMITED}, 1000),
        ([V1, V2], {"unified__pod__memory_max": 900, "memory__memory_limit_in_bytes": 1000}, 900),
        ([V2], {"pod__box__memory_max": "max"}, None),
        (["3:cpu:/x", "nonsense"], {"memory_max": 1000}, None),
    ],
)
def test_the_default_is_the_smallest_limit_of_the_container(lines, limits, expected, tmp_path):
    """Both versions of control groups, a group within a group, and a path of the host that is not mounted."""
    groups(tmp_path, lines, **limits)
    found = _memory._physical_memory(tmp_path)
    assert found == (expected or _memory._physical_memory(tmp_path / "nothing"))


@pytest.mark.skipif(sys.platform == "win32", reason="no such limit")
def test_the_default_is_what_a_limit_of_the_address_space_leaves(monkeypatch, tmp_path):
    """Beside the libraries, which are mapped already; at least one byte."""
    import resource

    for limit, expected in ((_memory.MAPPED + 5000, 5000), (1, 1)):
        monkeypatch.setattr(resource, "getrlimit", lambda which, limit=limit: (limit, resource.RLIM_INFINITY))
        assert _memory._physical_memory(tmp_path) == expected
    assert str(MemoryBudget.of(None)) == "this process may use 1e-06 MB"


def test_the_automatic_structure_stays_within_the_budget():
    """Exact, Kronecker factors, the diagonal: 101 weights; of a frozen net, which needs no other curvature."""
    net = nets.regressor(module__n_in=3, module__hidden=20, max_epochs=5)
    net.fit(X.astype(np.float32), Y[:, None].astype(np.float32))
    model = LaplaceRegressor(FrozenEstimator(net), random_state=0)
    found = {budget: model.set_params(memory_budget=budget).fit(X, Y).structure_ for budget in (None, "50kB", "15kB")}
    assert found == {None: "functional", "50kB": "kron", "15kB": "diag"}


def test_what_does_not_fit_says_what_it_needs_and_what_is_allowed():
    """Before any training: the structure, one row beside it, or the training's own curvature."""
    full = LaplaceRegressor(**SMALL, hessian_structure="full", memory_budget="200kB")
    with pytest.raises(
        MemoryBudgetError,
        match=r"'full' needs about 0.000245 GB \(244,824 bytes\) for 101 weights.*memory_budget allows 0.2 MB\. Use",
    ):
        full.fit(X, Y)
    with pytest.raises(
        MemoryBudgetError, match=r"one row of the data needs about 0.00588 MB.*in addition to 0.245 MB of the po"
    ):
        full.set_params(memory_budget=245_000).fit(X, Y)
    with pytest.raises(
        MemoryBudgetError, match=r"a curvature of all 101 weights in addition to the.*a larger memory_budget or"
    ):
        LaplaceRegressor(**SMALL, hessian_structure="diag", memory_budget="20kB").fit(X, Y)


def test_the_budget_does_not_train_again(tmp_path):
    """Neither is it part of the key, nor does it go missing in a training that is cached."""
    memory = Memory(tmp_path, verbose=0)
    models = [LaplaceRegressor(**SMALL, memory=memory, memory_budget=b).fit(X, Y) for b in (None, "1GB", "500kB")]
    assert len(list(tmp_path.rglob("output.pkl"))) == 1
    for model in models[1:]:
        np.testing.assert_allclose(model.predict_std(X), models[0].predict_std(X), rtol=1e-9)
    with pytest.raises(MemoryBudgetError, match="a curvature of all 101 weights"):
        LaplaceRegressor(**{**SMALL, "random_state": 1}, memory=memory, memory_budget="20kB").fit(X, Y)


def test_predictions_stay_within_the_budget(monkeypatch):
    """Also one that is set after the fit; what is held by then counts."""
    model = LaplaceRegressor(**SMALL, hessian_structure="full").fit(X, Y)
    expected = model.predict_std(X)
    steps = []
    usual = MemoryBudget.chunk_rows
    monkeypatch.setattr(MemoryBudget, "chunk_rows", lambda *args: steps.append(usual(*args)) or steps[-1])
    np.testing.assert_allclose(model.set_params(memory_budget="200kB").predict_std(X), expected, rtol=1e-9)
    held = _memory.held(model.posterior_, model.laplace_.curvature)
    assert 3 * 8 * 101**2 >= held >= 2 * 8 * 101**2
    assert steps == [(200_000 - held) // (40 * 101)]
    with pytest.raises(MemoryBudgetError, match="one row of the data needs"):
        model.set_params(memory_budget="100kB").predict_std(X)
