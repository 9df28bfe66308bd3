"""Make train.tsv.gz, valid.tsv.gz and test.tsv.gz from the source distribution of vaderSentiment 3.3.2.

    python make_splits.py vaderSentiment-3.3.2.tar.gz

The label is 1 where the raters' mean is at least CLEAR and 0 where it is at most -CLEAR; what lies between (one
sentence in twenty) leans neither way and is left out. A sentence's part and its place there depend on the hash
of its words alone: every run gives the same rows in the same order, and two spellings of one sentence cannot
end up in different parts. Only the first of them is kept.
"""

import gzip
import hashlib
import re
import sys
import tarfile
from pathlib import Path

CLEAR = 0.5  # of a scale from -4 to 4
TEST, VALID = 0.2, 0.1  # parts of the whole; 2,000 test sentences tell accuracies 2 points apart
SHA256 = "5d7c06e027fc8b99238edb0d53d970cf97066ef97654009890b83703849632f9"
OUTER = "vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz"
INNER = "hutto_ICWSM_2014/movieReviewSnippets_GroundTruth.txt"


def rated_sentences(sdist):
    """`(mean rating, sentence)` for each line `number<TAB>mean<TAB>sentence`, spaces put right."""
    with tarfile.open(sdist) as outer, tarfile.open(fileobj=outer.extractfile(OUTER)) as inner:
        lines = inner.extractfile(INNER).read().decode("utf-8").splitlines()
    for line in lines:
        _, mean, sentence = line.split("\t")
        yield float(mean), " ".join(sentence.split())


def split(rated):
    """The rows of each part, `{"train": ["label<TAB>sentence", ...], ...}`."""
    found = {}
    for mean, sentence in rated:
        words = " ".join(re.findall(r"\w+", sentence.lower()))
        place = hashlib.sha256(words.encode("utf-8")).digest()
        if abs(mean) >= CLEAR:
            found.setdefault(place, f"{int(mean > 0)}\t{sentence}")

    parts = {"train": [], "valid": [], "test": []}
    for place, row in sorted(found.items()):
        where = int.from_bytes(place[-4:], "big") / 2**32  # its first bytes give the order
        parts["test" if where < TEST else "valid" if where < TEST + VALID else "train"].append(row)
    return parts


def main(sdist):
    try:
        digest = hashlib.sha256(Path(sdist).read_bytes()).hexdigest()
    except OSError as error:
        return f"{sdist}: {error.strerror}"
    if digest != SHA256:
        return f"{sdist} is not vaderSentiment-3.3.2.tar.gz: its SHA-256 is {digest}, not {SHA256}"
    for name, rows in split(rated_sentences(sdist)).items():
        text = "".join(row + "\n" for row in rows).encode("utf-8")
        Path(__file__).with_name(f"{name}.tsv.gz").write_bytes(gzip.compress(text, mtime=0))
        print(f"{name}: {len(rows)} sentences, {sum(row[0] == '1' for row in rows)} of them positive")


if __name__ == "__main__":
    problem = main(sys.argv[1]) if len(sys.argv) == 2 else __doc__
    if problem:
        print(problem, file=sys.stderr)
        sys.exit(2)
