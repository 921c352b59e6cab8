"""What a pass over the data holds: the structure and one chunk, however many rows there are."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest


@pytest.mark.skipif(sys.platform == "win32", reason="no resource module")
@pytest.mark.parametrize("structure", ["diag", "kron", "full", "low_rank"])
def test_ten_times_the_rows_take_no_more_memory(structure):
    """Rows that are generated a chunk at a time: their Jacobian has 460 MB, of which the peak grows by a tenth at most.

    An allocator's slack after a thousand chunks is what is left of it.
    """
    script = f"""
    import resource, torch
    from sklearn_laplace.curvatures import GGN
    from sklearn_laplace.laplace import fit_laplace
    from sklearn_laplace.likelihoods import Gaussian
    from sklearn_laplace.network import Network
    from sklearn_laplace.structures import STRUCTURES

    torch.set_num_threads(1)
    module = torch.nn.Sequential(torch.nn.Linear(8, 20), torch.nn.Tanh(), torch.nn.Linear(20, 1))
    network = Network.trace(module, torch.zeros(3, 8))

    def rows(n, step=4096):
        for start in range(0, n, step):
            x = torch.randn(min(step, n - start), 8)
            yield x, x[:, :1], torch.ones(len(x))

    def peak(n):
        fit = fit_laplace(network, Gaussian(), GGN(), STRUCTURES["{structure}"], network.scalar_prior(), rows(n))
        assert fit.total_weight == n
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    first = peak(60_000)
    print(peak(600_000) - first)
    """
    run = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    assert float(run.stdout) < 46
