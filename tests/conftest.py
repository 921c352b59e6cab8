"""One torch thread a test process: small problems gain nothing from more, and parallel processes would fight."""

import torch

torch.set_num_threads(1)
