r"""The sampled predictive: outputs :math:`f_{\theta_s}(x)` of the network itself for weights :math:`\theta_s \sim q`.

The samples are shared by all rows, so a prediction does not depend on the other rows. A batch of samples runs through
the network in one pass (``torch.func``). If the module does not support this, the samples run one at a time.

As the posterior narrows, this predictive converges to the linearised one. A wide Gaussian also covers weights where the
quadratic approximation of the loss is poor.
"""

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor
from torch.func import functional_call, vmap

from ..latent import LatentGaussian
from ..network.network import Network
from ..replica import replicate
from ..structures._base import Posterior
from ._base import PosteriorPredictive

PASS_ELEMENTS = 2**22
"""Maximum number of weights plus activations, over all samples, in one batched pass."""


@dataclass(frozen=True)
class MC(PosteriorPredictive):
    """Output moments over weight samples.

    >>> from sklearn_laplace.laplace.network import trace
    >>> module = torch.nn.Linear(1, 1, bias=False).double()
    >>> network = trace(module, torch.ones(1, 1).double())
    >>> predictive = MC(torch.tensor([[-1.0], [1.0]]).double())
    >>> functions = predictive.functions(network, predictive.deviations, torch.full((1, 1), 2.0).double())
    >>> (functions - 2 * module.weight.item()).tolist()
    [[[-2.0, 2.0]]]
    """

    deviations: Tensor  # weight samples minus the posterior mean, (S, P)
    takes_link: ClassVar[bool] = False

    @classmethod
    def prepared(cls, posterior: Posterior, n_samples: int, seed: int) -> Self:
        return cls(posterior.sample(n_samples, torch.Generator().manual_seed(seed)))

    def latent(self, network: Network, posterior: Posterior, x: Tensor, shift: Tensor | None = None) -> LatentGaussian:
        """Sample mean (n, C), sample covariance (n, C, C), and the samples (S, n, C) themselves."""
        samples = self.functions(network, self.deviations, x, shift).movedim(-1, 0)
        mean, centred = _centred(samples)
        return LatentGaussian(mean, torch.einsum("snc,snd->ncd", centred, centred), samples)

    def mean(self, network: Network, x: Tensor, shift: Tensor | None = None) -> Tensor:
        return self.functions(network, self.deviations, x, shift).mean(-1)

    def joint_covariance(
        self, network: Network, posterior: Posterior, x: Tensor, shift: Tensor | None = None
    ) -> Tensor:
        """Sample covariance, shape (n·C, n·C); its rank is below S."""
        centred = _centred(self.functions(network, self.deviations, x, shift).movedim(-1, 0))[1].flatten(1)
        covariance = centred.mT @ centred
        return torch.triu(covariance) + torch.triu(covariance, 1).mT

    @staticmethod
    def functions(network: Network, deviations: Tensor, x: Tensor, shift: Tensor | None = None) -> Tensor:
        thetas = network.theta + (deviations if shift is None else deviations + shift)
        width = sum(block.size + len(x) * block.outputs * block.positions for block in network.layout.blocks)
        if _runs_batched(network, x[:1]):
            parts = [_batched(network, chunk, x) for chunk in thetas.split(max(PASS_ELEMENTS // width, 1))]
        else:
            parts = [network.with_parameters(theta)(x)[None] for theta in thetas]
        return torch.cat(parts).double().movedim(0, -1)


def _centred(samples: Tensor) -> tuple[Tensor, Tensor]:
    """Mean over the samples (S, …), and scaled deviations whose outer products sum to the unbiased covariance."""
    mean = samples.mean(0)
    return mean, (samples - mean) / max(len(samples) - 1, 1) ** 0.5


def _batched(network: Network, thetas: Tensor, x: Tensor) -> Tensor:
    """Outputs (s, n, C) for weight vectors (s, P) in one pass, on a replica that ``functional_call`` may modify."""
    module = replicate(network.module, {}, network.shallow)
    dtype = next(network.module.parameters()).dtype

    def outputs(tensors: dict[str, Tensor]) -> Tensor:
        return network.transform_outputs(functional_call(module, tensors, (x,)))

    with torch.set_grad_enabled(x.requires_grad):
        stacked: Tensor = vmap(outputs, randomness="different")(network.tensors(thetas.to(dtype)))
    return stacked


def _runs_batched(network: Network, x: Tensor) -> bool:
    """True if a batched pass gives the same outputs as separate passes, at two random weight vectors."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(2, network.n_parameters, generator=generator, dtype=torch.float64)
    thetas = network.theta + 0.1 * noise.to(network.theta.device)
    alone = torch.stack([network.with_parameters(theta)(x) for theta in thetas])
    try:
        together = _batched(network, thetas, x)
    except RuntimeError:  # raised by torch.func for data-dependent control flow and in-place updates
        return False
    return torch.allclose(together, alone, rtol=1e-4, atol=1e-5, equal_nan=True)
