import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinyenc.data import IGNORE, PAD, Batches, pad, piece_labels

# --- pad


def test_padding_fills_with_pad_and_the_mask_marks_real_tokens():
    ids, mask = pad([[2, 7, 3], [2, 3], np.array([5], np.int32)])
    assert ids.tolist() == [[2, 7, 3], [2, 3, 0], [5, 0, 0]]
    assert mask.tolist() == [[True, True, True], [True, True, False], [True, False, False]]
    assert (ids.dtype, mask.dtype) == (np.int64, np.bool_)


def test_mask_comes_from_the_lengths_and_not_from_the_ids():
    _, mask = pad([[2, PAD, 3, PAD], [2, 3]])
    assert mask.tolist() == [[True] * 4, [True, True, False, False]]


def test_padding_goes_up_to_a_multiple():
    assert pad([[1] * 9, [1]], multiple=8)[0].shape == (2, 16)
    assert pad([[1] * 8, [1]], multiple=8)[0].shape == (2, 8)


@pytest.mark.parametrize(
    ("sequences", "problem"),
    [
        ([], "an empty batch"),
        ([[1], []], r"sequence 1 has shape \(0,\)"),
        ([[1], [[2, 3]]], r"sequence 1 has shape \(1, 2\)"),
        ([3], r"sequence 0 has shape \(\)"),
        ([[1, 2.5]], "sequence 0 holds float64, not integers"),
        ([["1"]], "sequence 0 holds <U1, not integers"),
        ([[True]], "sequence 0 holds bool, not integers"),
        ([[2**63]], "sequence 0 holds uint64, not integers"),
    ],
)
def test_sequences_that_cannot_be_padded_are_named(sequences, problem):
    with pytest.raises(ValueError, match=problem):
        pad(sequences)


# --- piece_labels


def test_first_piece_of_a_word_has_its_label_and_the_others_none():
    labels = [0, 1, 2, 2]  # O B-PERS I-PERS I-PERS: The Australian Prime minister
    assert piece_labels(labels, [None, 0, 1, 1, 2, 3, None]) == [IGNORE, 0, 1, IGNORE, 2, 2, IGNORE]
    assert piece_labels([4, 5], [None, 0, 1, None, None, 0, None])[-2] == 4


# --- Batches


def examples_of(lengths):
    """One example for each length; its tokens and its label say which it is."""
    return [([i + 1] * length, i) for i, length in enumerate(lengths)]


LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=60)
BOUNDS = st.tuples(
    st.none() | st.integers(1, 9), st.none() | st.integers(48, 200), st.none() | st.sampled_from([1, 4, 8])
).filter(lambda bounds: bounds[0] or bounds[1])


@settings(max_examples=200, deadline=None)
@given(LENGTHS, BOUNDS, st.booleans(), st.booleans(), st.integers(0, 2**40))
def test_every_example_comes_once_an_epoch_and_no_batch_exceeds_its_bounds(
    lengths, bounds, shuffle, bucket, seed
):
    batch_size, max_tokens, multiple = bounds
    batches = Batches(examples_of(lengths), batch_size, max_tokens, seed, shuffle, bucket, multiple)
    for epoch in range(2):
        assert batches.epoch == epoch
        expected, seen = len(batches), []
        got = list(batches)
        assert len(got) == expected
        for batch in got:
            assert len(batch.index) <= (batch_size or len(lengths))
            assert batch.ids.size <= (max_tokens or batch.ids.size)
            assert batch.ids.shape == batch.mask.shape
            assert batch.ids.shape[1] % (multiple or 1) == 0
            assert batch.labels.tolist() == batch.index.tolist()
            for i, ids, mask in zip(batch.index, batch.ids, batch.mask):
                assert ids[mask].tolist() == [i + 1] * lengths[i]
                assert not ids[~mask].any()
            seen += batch.index.tolist()
        assert sorted(seen) == list(range(len(lengths)))
        if not shuffle and not bucket:
            assert seen == sorted(seen)


@settings(max_examples=60, deadline=None)
@given(LENGTHS, BOUNDS, st.integers(0, 1000), st.data())
def test_state_taken_anywhere_goes_on_with_exactly_the_batches_that_were_left(lengths, bounds, seed, data):
    def new():
        return Batches(examples_of(lengths), bounds[0], bounds[1], seed)

    whole = new()
    expected = [batch.index.tolist() for _ in range(3) for batch in whole]
    stop = data.draw(st.integers(0, len(expected)))

    batches, seen = new(), []
    state = batches.state_dict()
    while len(seen) < stop:
        for batch in batches:
            seen.append(batch.index.tolist())
            state = batches.state_dict()
            if len(seen) == stop:
                break
    assert json.loads(json.dumps(state)) == state

    resumed = new()
    resumed.load_state_dict(state)
    while resumed.epoch < 3:
        seen += [batch.index.tolist() for batch in resumed]
    assert seen == expected


def test_loop_broken_off_goes_on_with_the_next_batch():
    batches = Batches(examples_of([3] * 10), batch_size=2, seed=1)
    expected = [b.index.tolist() for b in Batches(examples_of([3] * 10), batch_size=2, seed=1)]
    seen = [next(iter(batches)).index.tolist(), next(iter(batches)).index.tolist()]
    assert (batches.epoch, batches.position, len(batches)) == (0, 2, 5)
    seen += [batch.index.tolist() for batch in batches]
    assert seen == expected
    assert (batches.epoch, batches.position) == (1, 0)


def epochs(batches, n):
    return [[batch.index.tolist() for batch in batches] for _ in range(n)]


def test_order_differs_by_epoch_and_by_seed_and_repeats_with_the_same_seed():
    examples = examples_of(range(1, 101))
    first, second = epochs(Batches(examples, 8, seed=3), 2)
    assert first != second
    assert {tuple(sorted(b)) for b in first} != {
        tuple(sorted(b)) for b in second
    }  # not only the batches' order
    assert epochs(Batches(examples, 8, seed=3), 2) == [first, second]
    assert epochs(Batches(examples, 8, seed=4), 1) != [first]


def test_without_shuffling_every_epoch_is_the_same_and_the_seed_does_not_matter():
    examples = examples_of([5, 1, 4, 2, 3])
    assert epochs(Batches(examples, 2, shuffle=False, bucket=False), 2) == [[[0, 1], [2, 3], [4]]] * 2
    assert epochs(Batches(examples, 2, shuffle=False, seed=9), 2) == [[[1, 3], [4, 2], [0]]] * 2


def test_bucketing_leaves_little_padding():
    masks = [batch.mask for batch in Batches(examples_of(np.random.default_rng(0).integers(3, 50, 4000)), 32)]
    assert sum(mask.sum() for mask in masks) > 0.95 * sum(mask.size for mask in masks)


def test_shuffled_batches_are_not_in_the_order_of_their_lengths():
    widths = [batch.ids.shape[1] for batch in Batches(examples_of(range(1, 201)), 5)]
    assert abs(np.corrcoef(widths, np.arange(len(widths)))[0, 1]) < 0.5


def test_labels_of_tokens_are_padded_with_ignore():
    (batch,) = Batches([([2, 7, 3], [IGNORE, 1, IGNORE]), ([2, 3], [0, 4])], 2, shuffle=False, bucket=False)
    assert batch.labels.tolist() == [[IGNORE, 1, IGNORE], [0, 4, IGNORE]]
    assert batch.labels.dtype == np.int64
    (batch,) = Batches([([2, 7, 3], [IGNORE, 1, IGNORE])], 2, multiple=4)
    assert batch.labels.shape == batch.ids.shape == (1, 4)


def test_examples_without_labels_make_batches_without_labels():
    (batch,) = Batches([([2, 3], None), ([2], None)], 2)
    assert batch.labels is None


def test_labels_keep_their_kind_of_number():
    (batch,) = Batches([([2], np.int64(1)), ([3], np.int64(0))], 2)
    assert batch.labels.dtype == np.int64
    (batch,) = Batches([([2], 0.5), ([3], 1.0)], 2)
    assert batch.labels.dtype == np.float64


@pytest.mark.parametrize(
    ("examples", "arguments", "problem"),
    [
        ([], {"batch_size": 2}, "no examples"),
        ([([1], 0)], {}, "batches need a batch_size or max_tokens"),
        ([([1], 0)], {"batch_size": 0}, "batch_size 0 is less than 1"),
        ([([1], 0)], {"max_tokens": -5}, "max_tokens -5 is less than 1"),
        ([([1], 0)], {"batch_size": 1, "multiple": 0}, "multiple 0 is less than 1"),
        ([([1], 0)], {"batch_size": 1, "seed": -1}, "non-negative"),
        ([([1], 0), ([], 1)], {"batch_size": 2}, r"example 1 has shape \(0,\), not \(tokens,\)"),
        ([([1], 0), ("a text", 1)], {"batch_size": 2}, r"example 1 has shape \(\), not \(tokens,\)"),
        ([([1], 0), (["a"], 1)], {"batch_size": 2}, "example 1 holds <U1, not integers"),
        ([([1], 0), ([5.0], 1)], {"batch_size": 2}, "example 1 holds float64, not integers"),
        ([([1], [0]), ([1, 2], ["B", "I"])], {"batch_size": 2}, "the label of example 1 holds <U1, not integers"),
        ([([1], [0]), ([1, 2], [1, None])], {"batch_size": 2}, "the label of example 1 holds object, not integers"),
        ([([1], 0), ([1] * 9, 1)], {"max_tokens": 8}, "example 1 has 9 tokens, more than .* max_tokens 8"),
        (
            [([1] * 9, 1)],
            {"max_tokens": 12, "multiple": 8},
            "example 0 has 9 tokens, more than .* max_tokens 12",
        ),
        ([([1], 0), ([1, 2], [0, 1])], {"batch_size": 2}, "example 1 is one for each token, .* 0 a number"),
        ([([1], 0), ([1], None)], {"batch_size": 2}, "example 1 is None"),
        ([([1, 2], [0])], {"batch_size": 2}, "example 0 has 1 labels for 2 tokens"),
    ],
)
def test_examples_and_bounds_that_make_no_batches_are_named(examples, arguments, problem):
    with pytest.raises(ValueError, match=problem):
        Batches(examples, **arguments)


@pytest.mark.parametrize("odd, dtype", [(1.0, np.float64), (True, np.int64), (2, np.int64)])
def test_labels_are_of_one_dtype_in_all_batches(odd, dtype):
    batches = Batches([([1], 0), ([1], odd), ([1], 1)], 1)
    assert [batch.labels.dtype for batch in batches] == 3 * [dtype]


def test_labels_put_in_later_are_not_cut_to_the_dtype_of_the_first():
    batches = Batches([([1, 2], 0), ([3, 4], 1)], 2)
    batches.examples = [(ids, label + 0.5) for ids, label in batches.examples]
    with pytest.raises(TypeError, match="Cannot cast .* from .*float64.* to .*int64"):
        next(iter(batches))


def test_ids_may_be_another_librarys_arrays():
    class Tensor:
        """NumPy can read it, and its min is not NumPy's."""

        def __init__(self, *numbers):
            self.numbers = numbers

        def __len__(self):
            return len(self.numbers)

        def __array__(self, dtype=None, copy=None):
            return np.array(self.numbers, dtype)

        def min(self, dim):
            raise AssertionError

    batches = Batches([(Tensor(4, 5), 0), (Tensor(9), 1), (Tensor(5, 3, 4), 0)], 1, shuffle=False, bucket=False)
    assert [batch.ids.tolist() for batch in batches.extremes()] == [[[4, 5]], [[9]], [[5, 3, 4]]]


def test_label_that_is_a_word_is_refused():
    with pytest.raises(TypeError, match="label 'pos' is not a number"):
        Batches([([1], "pos")], 1)


def test_state_that_lacks_an_entry_or_is_of_other_batches_is_refused_and_changes_nothing():
    batches = Batches(examples_of(range(1, 30)), 4, seed=1)
    next(iter(batches))
    state = batches.state_dict()
    for name in state:
        with pytest.raises(ValueError, match=f"lacks {name}"):
            batches.load_state_dict({k: v for k, v in state.items() if k != name})
    for bad in ({"position": 99}, {"position": -1}, {"epoch": 1}, {"epoch": -1}, {"order": 0}):
        with pytest.raises(ValueError):
            batches.load_state_dict({**state, **bad})
        assert (batches.epoch, batches.position) == (0, 1)
    for other in (
        Batches(examples_of(range(1, 31)), 4, seed=1),
        Batches(examples_of(range(2, 31)), 4, seed=1),
        Batches(examples_of(range(1, 30)), 5, seed=1),
        Batches(examples_of(range(1, 30)), 4, seed=2),
        Batches(examples_of(range(1, 30)), 4, seed=1, shuffle=False),
    ):
        with pytest.raises(ValueError, match="the state is of other batches"):
            other.load_state_dict(state)
        assert (other.epoch, other.position) == (0, 0)
    in_order = Batches(examples_of([1] * 9), 4, shuffle=False)
    with pytest.raises(ValueError, match="the state is of other batches"):
        Batches(examples_of([1] * 9), 5, shuffle=False).load_state_dict(in_order.state_dict())


def test_examples_are_not_changed():
    examples = examples_of([3, 1, 2])
    before = json.dumps(examples)
    batches = Batches(examples, 2)
    for batch in batches:
        batch.ids[:] = 0
        batch.labels[:] = 0
    assert json.dumps(examples) == before
