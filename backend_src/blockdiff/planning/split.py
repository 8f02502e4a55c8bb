"""What one of several devices holds and computes: a shape with that device's share of heads.

Follows ``models.share`` without its imports, which need torch. Knows nothing of bytes.
"""

from dataclasses import replace

from blockdiff.planning.shape import AttentionShape, DeltaShape, ModelShape

# what every device has in full
REPLICATED_PARTS = frozenset(("norms", "router", "other"))


def split_problem(shape: ModelShape, ways: int) -> str | None:
    """Why ``ways`` devices cannot share the model; None: they can."""
    if ways == 1:
        return None
    for name, count in _parts(shape):
        if count % ways:
            return f"the model's {name} ({count}) must be a multiple of it"
    for name, count in _heads(shape):
        if count % ways and ways % count:
            return f"the model's {name} ({count}) must be a multiple or a divisor of it"
    return None


def _parts(shape: ModelShape) -> list[tuple[str, int]]:
    """Counts that must divide, and their names."""
    counts = [("attention heads", kind.heads) for kind in shape.attention]
    if shape.delta is not None:
        counts.append(("linear value heads", shape.delta.value_heads))
    if shape.dense is not None:
        counts.append(("feed-forward width", shape.dense.width))
    if shape.experts is not None:
        counts.append(("experts", shape.experts.count))
        counts.append(("shared expert's width", shape.experts.shared_width))
    return [*counts, ("vocabulary", shape.vocab_size)]


def _heads(shape: ModelShape) -> list[tuple[str, int]]:
    """Heads that several devices may have a copy of, and their names."""
    counts = [("key heads", kind.kv_heads) for kind in shape.attention]
    if shape.delta is not None:
        counts.append(("linear key heads", shape.delta.key_heads))
    return counts


def share(shape: ModelShape, ways: int) -> ModelShape:
    """The shape that one of ``ways`` devices computes; ``parts`` stay the whole model's."""
    dense, experts = shape.dense, shape.experts
    return replace(
        shape,
        attention=tuple(_attention(kind, ways) for kind in shape.attention),
        delta=None if shape.delta is None else _delta(shape.delta, ways),
        dense=None if dense is None else replace(dense, width=dense.width // ways),
        # any row may choose experts that are all on this device
        experts=None
        if experts is None
        else replace(experts, shared_width=experts.shared_width // ways),
    )


def _attention(kind: AttentionShape, ways: int) -> AttentionShape:
    return replace(kind, heads=kind.heads // ways, kv_heads=max(kind.kv_heads // ways, 1))


def _delta(own: DeltaShape, ways: int) -> DeltaShape:
    return replace(
        own, key_heads=max(own.key_heads // ways, 1), value_heads=own.value_heads // ways
    )
