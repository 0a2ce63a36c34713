"""`chain(...)`: compose a defence from transforms and one aggregation.

Users call it once, before a run. A transform changes contributions before they are summed (clip, noise, fixed point);
an aggregation sums them (in the clear, masked, encrypted). Each is a link; the result is a `Defense`.
"""

from __future__ import annotations

import inspect

from securefed.defenses._aggregation import Aggregation
from securefed.defenses._base import AdaptiveTransform, ChainStage, Defense, Transform
from securefed.defenses._fixed_point import Quantise
from securefed.defenses._plain import Plain
from securefed.errors import ConfigError

Link = Transform | Aggregation | Defense
"""A part of a chain."""

_ORDER = " -> ".join(stage.name for stage in ChainStage)
_EXAMPLE = "chain(clip(1.0), gaussian(2.0), secure_aggregation())"


def chain(*links: Link) -> Defense:
    """Compose a defence, for instance `chain(clip(1.0), gaussian(2.0), secure_aggregation())`.

    A `Defense` as a link contributes its transforms, and its aggregation where it is the last link. An aggregation that
    needs integers gets `quantise()` (fixed point) before it, where no other link makes them; so a default `quantise()`
    in a `Defense` that is not the last link is left out. Without an aggregation the sum is plain.

    Args:
        *links: transforms in the order of `ChainStage`, then at most one aggregation.

    Raises:
        ConfigError: a link that is none, transforms out of order, two of one stage, or anything after the aggregation.
    """
    transforms: list[Transform] = []
    aggregation: Aggregation = Plain()
    for position, link in enumerate(links):
        last = position == len(links) - 1
        _check_link(link)
        if isinstance(link, Defense):
            # a defence before the end leaves its default fixed point out, where the end of the chain decides on one
            transforms.extend(link.transforms if last else (t for t in link.transforms if t != Quantise()))
            if last:
                aggregation = link.aggregation
            elif not isinstance(link.aggregation, Plain):
                raise ConfigError(f"{link.aggregation} must be the last link of a chain; an aggregation ends it")
        elif isinstance(link, Aggregation):
            if not last:
                raise ConfigError(f"{link} must be the last link of a chain; an aggregation ends it")
            aggregation = link
        else:
            transforms.append(link)
    if aggregation.exact and not any(transform.stage == ChainStage.ENCODE for transform in transforms):
        transforms.append(Quantise())
    _check_order(transforms)
    return Defense(tuple(transforms), aggregation)


def identity() -> Defense:
    """Compose the chain without links: contributions are summed in the clear, in floating point."""
    return chain()


def as_defense(given: Link | None) -> Defense:
    """Turn the argument `defense` of a public function into a `Defense`.

    Args:
        given: a defence; an aggregation or a transform alone, which becomes a chain of one link; or `None` for sums in
            the clear.

    Raises:
        ConfigError: something else, for instance a name or a class.
    """
    if given is None:
        return identity()
    return given if isinstance(given, Defense) else chain(given)


def _check_link(link: object) -> None:
    """Raise `ConfigError` for what cannot stand in a chain, with what to write instead."""
    if isinstance(link, Defense):
        return
    if isinstance(link, Transform | Aggregation):
        needed = ("name", "stage") if isinstance(link, Transform) else ("name", "exact", "hides")
        if missing := [attribute for attribute in needed if not hasattr(link, attribute)]:
            kind = "a transform" if isinstance(link, Transform) else "an aggregation"
            wanted = " and ".join(f"`{attribute}`" for attribute in missing)
            example = "`stage: ClassVar[ChainStage] = ChainStage.SPARSIFY`" if "stage" in missing else "`name = ...`"
            raise ConfigError(f"{type(link).__name__} is {kind} without {wanted}; state it in the class: {example}")
        return
    if isinstance(link, str):
        instead = f"defences are objects: call the function of that name from securefed.defenses, as in {_EXAMPLE}"
        raise ConfigError(f"a chain got the text {link!r}; {instead}")
    if isinstance(link, type) or inspect.isroutine(link):
        kind, name = ("class" if isinstance(link, type) else "function"), link.__name__
        raise ConfigError(f"a chain got the {kind} {name} itself; call it with its parameters, as in {_EXAMPLE}")
    what = f"{link!r} of type {type(link).__name__}"
    raise ConfigError(
        f"a chain holds transforms, aggregations and defences, not {what}; write {_EXAMPLE}, or make the class a "
        "subclass of securefed.defenses.Transform or Aggregation"
    )


def _check_order(transforms: list[Transform]) -> None:
    """Raise `ConfigError` unless the stages ascend, each at most once."""
    stages = [transform.stage for transform in transforms]
    for stage in ChainStage:
        same = [str(transform) for transform in transforms if transform.stage == stage]
        if len(same) > 1 and stage == ChainStage.ENCODE:
            raise ConfigError(f"{' and '.join(same)} both turn a contribution into integers ({stage.name}); keep one")
        if len(same) > 1:
            raise ConfigError(f"{' and '.join(same)} are of the same stage, {stage.name}; keep one")
    if stages != sorted(stages):
        given = ", ".join(f"{transform} ({transform.stage.name})" for transform in transforms)
        right = ", ".join(str(transform) for transform in sorted(transforms, key=lambda t: t.stage))
        raise ConfigError(f"a chain applies its links in the order {_ORDER}, not {given}; write chain({right}, ...)")
    adaptive = [str(transform) for transform in transforms if isinstance(transform, AdaptiveTransform)]
    if len(adaptive) > 1:
        raise ConfigError(f"{' and '.join(adaptive)} both learn from releases; a chain holds one adaptive transform")
