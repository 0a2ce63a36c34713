"""Draw one picture for a talk: the same client, as four observers see it.

Eight clients hold one drawn letter each, of 28 x 28 pixels, all of one class, and send one gradient of a softmax
regression. For a class c the gradient of one row x is (p_c - y_c) x for the weights and p_c - y_c for the bias, so that
their quotient is the row. Of a sum of gradients it is the mean of the rows in the sum, since p is the same for all of
them at the first model, which is zero.

`python -m docs.generators.four_observers` writes `docs/four-observers.png`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from securefed import Array, Dataset, Federation, Public, chain
from securefed.algorithms import DSGD
from securefed.attacks import View, views
from securefed.defenses import clip, secure_aggregation, skellam
from securefed.problems import SoftmaxRegression

PLACE = Path(__file__).parents[1] / "four-observers.png"
LETTERS, SIDE, TARGET = "SECUREDX", 28, 0
TITLES = ("in the clear", "the sum of 8", "the sum less 6 colluders", "the sum with noise")
_ZOOM, _GAP, _HEAD = 8, 16, 30


def pictures() -> Array:
    """Draw one letter for each client, (clients, pixels) in [0, 1]."""
    rows = []
    for letter in LETTERS:
        image = Image.new("L", (SIDE, SIDE))
        ImageDraw.Draw(image).text((SIDE / 2, SIDE / 2), letter, 255, ImageFont.load_default(25), anchor="mm")
        rows.append(np.asarray(image, np.float64).ravel() / 255)
    return np.stack(rows)


def seen() -> dict[str, Array]:
    """Return what each observer makes of the first client's picture, by title."""
    rows = pictures()
    count = len(rows)
    clients = [Dataset(row[None], np.array([0])) for row in rows]
    public = Public(count, count, SIDE * SIDE, (1,) * count, 2, 1.0)
    algorithm = DSGD(problem=SoftmaxRegression(), learning_rate=1.0)

    def view(kind: object, *links: object) -> View:
        run = Federation(algorithm, clients, chain(*links) if links else None, seed=0, public=public).run(1)
        return kind(run.transcript, TARGET)  # type: ignore[operator,no-any-return]

    masks = secure_aggregation(threshold=count - 1)
    colluders = range(2, count)
    shown = (
        view(views.server),
        view(views.sum_only, masks),
        view(lambda transcript, target: views.collusion(transcript, target, colluders), masks),
        view(views.sum_only, clip(1.0), skellam(1.0), secure_aggregation()),
    )
    return {title: estimate(one) for title, one in zip(TITLES, shown, strict=True)}


def estimate(view: View) -> Array:
    """Divide the gradient of the class's weights by that of its bias."""
    message = view.rounds[0].message
    weights = next(value for value in message.values() if value.ndim == 2)
    bias = next(value for value in message.values() if value.ndim == 1)
    by_class = weights if weights.shape[1] == SIDE * SIDE else weights.T
    return np.asarray(by_class[0] / bias[0])


def draw(found: dict[str, Array]) -> Image.Image:
    """Draw the pictures side by side, each under its title."""
    side = SIDE * _ZOOM
    whole = Image.new("L", (len(found) * (side + _GAP) + _GAP, side + _HEAD + _GAP), 255)
    pen, font = ImageDraw.Draw(whole), ImageFont.load_default(17)
    for place, (title, pixels) in enumerate(found.items()):
        left = _GAP + place * (side + _GAP)
        inked = 255 - np.rint(np.clip(pixels, 0, 1) * 255).astype(np.uint8).reshape(SIDE, SIDE)
        whole.paste(Image.fromarray(inked).resize((side, side), Image.Resampling.NEAREST), (left, _HEAD))
        pen.rectangle((left - 1, _HEAD - 1, left + side, _HEAD + side), outline=160)
        pen.text((left, 4), title, 0, font)
    return whole


if __name__ == "__main__":
    draw(seen()).save(PLACE, optimize=True)
