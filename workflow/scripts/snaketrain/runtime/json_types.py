"""What JSON and YAML files hold. Whoever takes a value out of one checks it, or has written it."""

from typing import Any, TypeAlias

Json: TypeAlias = Any
JsonObject: TypeAlias = dict[str, Any]
