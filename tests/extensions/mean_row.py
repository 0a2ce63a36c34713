"""An attack that reads a mean, written from extension_templates/attack.py: a gradient of W over that of the bias."""

import numpy as np

from securefed.attacks import Reconstruction
from securefed.errors import TranscriptError


class MeanOfGradients:
    name, secret = "statistics/mean-of-gradients", "samples"

    def applies(self, target, observed):
        seen = observed.rounds and {"gradient.weight", "gradient.bias"} <= set(observed.rounds[0].message)
        return None if seen else "no message with gradients of weight and bias was seen"

    def run(self, observed, target, rng):
        if (reason := self.applies(target, observed)) is not None:
            raise TranscriptError(reason)
        weight, bias = (observed.rounds[0].message[f"gradient.{name}"] for name in ("weight", "bias"))
        rows = sum(target.public.rows[client] for client in observed.members)
        return Reconstruction(self.secret, np.tile(bias @ weight / max(bias @ bias, 1e-300), (rows, 1)))
