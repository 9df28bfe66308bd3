"""Classification of whole sequences."""

import numpy as np

from ..attention.masks import real_tokens
from ..layer import Layer
from ..layers.dropout import Dropout
from ..layers.linear import Linear
from ..tape import NO_TAPE
from .pooling import MeanPool


class Classifier(Layer):
    """out(drop(pool(encoder(ids, mask), mask))): token ids (B, T) -> logits (B, n_classes); mask as in `pooling`."""

    def __init__(self, encoder, n_classes, pool=None, dropout=0.1, rng=None):
        if n_classes < 2:
            raise ValueError(f"a classifier needs at least 2 classes, got {n_classes}")
        self.encoder = encoder
        self.pool = pool or MeanPool()
        self.drop = Dropout(dropout)
        self.out = Linear(encoder.d_model, n_classes, rng=rng)

    def forward(self, ids, mask=None, tape=NO_TAPE):
        mask = None if mask is None else real_tokens(mask, np.shape(ids))
        states = self.encoder.forward(ids, mask, tape)  # (B, T, D)
        pooled = self.pool.forward(states, mask, tape)  # (B, D)
        pooled = self.drop.forward(pooled, tape)
        return self.out.forward(pooled, tape)

    def backward(self, dlogits, tape):
        """Adds to the gradients of the parameters; ids have none."""
        dpooled = self.out.backward(dlogits, tape)
        dpooled = self.drop.backward(dpooled, tape)
        dstates = self.pool.backward(dpooled, tape)
        self.encoder.backward(dstates, tape)
