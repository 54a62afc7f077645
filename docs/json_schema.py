"""The JSON schema of configurations, config/schema.json, with which editors complete settings and mark those that do not exist.

It knows names, types and bounds. What settings contradict each other, and which are missing once a run is merged with the common sections, shows
when the workflow starts.
"""

import re
import types
from collections.abc import Iterator
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic.json_schema import GenerateJsonSchema, models_json_schema
from pydantic_core.core_schema import ModelSchema, StringSchema

from snaketrain.config.schema import Section, Settings
from snaketrain.config.schema.base import LONGEST_NAME, NAME
from snaketrain.config.schema.of_extras import modules

Schema = dict[str, Any]


class OfFiles(GenerateJsonSchema):
    """What a file may have: a section that lacks settings which another place gives, a text in place of a section, a number in place of a text."""

    def model_schema(self, schema: ModelSchema) -> Schema:
        found = super().model_schema(schema)
        found.pop("required", None)
        return found | ({"type": ["object", "string"]} if schema["cls"].short_for else {})

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def str_schema(self, schema: StringSchema) -> Schema:
        return super().str_schema(schema) | {"type": ["string", "number"]}


def json_schema() -> Schema:
    beside = {extra.KEY: list(extra.TABLES.values()) for extra in modules("top_level")}
    classes = [Settings, *(section for sections in beside.values() for section in sections)]
    _, found = models_json_schema([(section, "validation") for section in classes], schema_generator=OfFiles)
    definitions = found["$defs"]
    sections = definitions.pop("Settings")["properties"]
    sections["data"] = {"anyOf": [sections["data"], {"type": "string", "description": "the name of one of `datasets`"}]}
    dotted, below = {}, []  # the settings as `train.learning_rate`; those below which users give names of their own, as `train.metrics`
    for place, section, name, is_mapping in places(Settings):
        dotted[place] = {"$ref": f"#/$defs/{section}/properties/{name}"}
        below += [place] if is_mapping else []
    anything_below = {f"^{re.escape(place)}\\.": {} for place in below}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A configuration of snaketrain",
        **mapping(
            sections
            | {
                "datasets": by_name({"$ref": "#/$defs/Data"}, "sections `data` by name, which `data: NAME` picks"),
                "runs": by_name(
                    {"$ref": "#/$defs/Run"}, "what runs change: nested settings are merged into the sections, dotted ones replace"
                ),
                "sweeps": by_name({"$ref": "#/$defs/Sweep"}, "each makes one run of every combination of the values of dotted settings"),
            }
            | {
                key: by_name({"anyOf": [{"$ref": f"#/$defs/{each.__name__}"} for each in of_key]}, f"settings of `{key}` by name")
                for key, of_key in beside.items()
            }
        ),
        "$defs": definitions
        | {
            "Run": or_null(mapping(sections | dotted, anything_below)),
            "Sweep": mapping({place: values_of(setting) for place, setting in (sections | dotted).items()}, anything_below),
        },
    }


def places(section: type[Section], path: str = "") -> Iterator[tuple[str, str, str, bool]]:
    """Of each setting: its dotted name, its class and its name there, and whether users give the names below it."""
    for name, field in section.model_fields.items():
        place = f"{path}.{name}" if path else name
        kinds = [kind for kind in alternatives(field.annotation) if isinstance(kind, type) and issubclass(kind, Section)]
        if path:
            yield place, section.__name__, name, any(get_origin(kind) is dict for kind in alternatives(field.annotation))
        for kind in kinds:
            yield from places(kind, place)


def alternatives(annotation: Any) -> list[Any]:
    """`A | None` is A and None."""
    if get_origin(annotation) is Annotated:
        return alternatives(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return [kind for each in get_args(annotation) for kind in alternatives(each)]
    return [annotation]


def mapping(settings: Schema, patterns: Schema | None = None) -> Schema:
    return {"type": "object", "properties": settings, "patternProperties": patterns or {}, "additionalProperties": False}


def by_name(value: Schema, description: str) -> Schema:
    names = {"pattern": f"^{NAME}$", "maxLength": LONGEST_NAME}
    return {"type": "object", "description": description, "propertyNames": names, "additionalProperties": value}


def values_of(setting: Schema) -> Schema:
    return {"type": "array", "minItems": 1, "items": setting}


def or_null(value: Schema) -> Schema:
    return value | {"type": [value["type"], "null"]}
