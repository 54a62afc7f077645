"""Types of JSON and YAML content, which is checked where it is read, unless this package has written it."""

from typing import Any, TypeAlias

Json: TypeAlias = Any
JsonObject: TypeAlias = dict[str, Any]
