"""How schemathesis writes bodies of kinds that it does not know."""

from __future__ import annotations

import schemathesis


@schemathesis.serializer("application/sdp")
def sdp(context: schemathesis.SerializationContext, value: object) -> bytes:
    """A text as it is; whatever is none as its words."""
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")
