"""The built-in images: scikit-learn's 1797 handwritten digits, 8x8 grey."""

import numpy as np

from fleetune.data.table import Listed, Source


def digits() -> Source:
    """Values 0..16 become 0..1; labels are 0..9."""
    from sklearn.datasets import load_digits  # a second's import that only this source needs

    found = load_digits()
    images = np.asarray(found.images, dtype=np.float64) / 16.0
    rows = tuple({"image": image, "label": int(label)} for image, label in zip(images, found.target, strict=True))
    return Source(train=(Listed(owner="digits", values=rows),))
