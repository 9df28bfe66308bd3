"""Faults that change no derivative, each with the reason."""

TILED = "attention.tiled.Tiled.backward: "
SAME_ARRAY = "two names of one array, which was computed in place"
CHUNKS = "attention.linear_attention.CausalLinearAttention.mix_backward: "
OVER_CHUNKS = "for here, state in zip(reversed(self.chunks({})), reversed(states)):"
EMPTY = f"{CHUNKS}dstate = 0 * states[0] -> dstate = "

EQUIVALENT = {
    "ops.normalise_backward: dx -= normed * row_mean(dy, normed) -> dx -= normed * row_mean(dx, normed)":
        "dx is dy less its mean, and the mean of normed is 0",
    f"{TILED}dscores *= weights -> dscores *= scores": SAME_ARRAY,
    f"{TILED}dv[:, :, keys] += weights.mT @ dy_rows -> dv[:, :, keys] += scores.mT @ dy_rows": SAME_ARRAY,
    **{"attention.per_sequence.PerSequence.backward: self.each(task, range(len(groups))) -> "
       f"self.each(task, range(len({other})))": "only its length is read, which all share"
       for other in ("biases", "tapes")},
    **{f"attention.per_sequence.PerSequence.each: if not self.core.parameters(): -> if {other}self.core.parameters():":
       "where gradients add up, side by side is right too but for a rare race" for other in ("", "not not ")},
    **{f"{where}.check_empty() -> pass": "looks whether all is well" for where in
       ("layers.recompute.Recompute.backward: replay", "attention.per_sequence.PerSequence.backward: tapes[i]")},
    **{f"ops.add_weight_gradient: share(part, dweight, len(rows(x))) -> share(part, dweight, len({other}))":
       "the depth only decides how many threads share it" for other in ("x", "rows(dy)", "rows(dweight)")},
    **{f"{CHUNKS}{OVER_CHUNKS.format('fq')} -> {OVER_CHUNKS.format(other)}": "only its length is read, which all share"
       for other in ("dmixed", "fk", "v1", "dfq", "dfk", "dv1")},
    **{f"{EMPTY}{zeros}": "the state before the first chunk is zero, as is what is made of it"
       for zeros in ("states[0]", "1 * states[0]", "0 * states[0] * 1.001", "0 * states[0] * 2",
                     "0 * states[0] * 0.5")},
}
