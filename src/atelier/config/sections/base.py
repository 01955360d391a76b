"""What every section of the configuration is made of."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo

_MOST = 2**31 - 1  # of any count; what is larger is a mistake, and overflows far from here
PositiveInt = Annotated[int, Field(gt=0, le=_MOST)]
NonNegativeInt = Annotated[int, Field(ge=0, le=_MOST)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegativeFloat = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Decay = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
FiniteFloat = Annotated[float, Field(allow_inf_nan=False)]
# What multiplies or bounds a loss is bounded itself: beyond, float32 makes 0, infinity or NaN of
# it, and the run stops at its first update with words about the learning rate.
Factor = Annotated[float, Field(ge=0, le=1e3, allow_inf_nan=False)]
Steepness = Annotated[float, Field(ge=1e-2, le=1e2, allow_inf_nan=False)]
RatioBound = Annotated[float, Field(ge=1e-9, le=1e6, allow_inf_nan=False)]
# What draws: outside, samples of a prompt are all alike or all noise, and nothing can be learned.
Temperature = Annotated[float, Field(ge=1e-2, le=1e2, allow_inf_nan=False)]
Guidance = Annotated[float, Field(ge=1, le=1e2, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


def _one_line(text: str) -> str:
    if not text.isprintable():
        raise ValueError("must be one line of printable characters")
    return text


# A name for people: a newline could forge a line of a log, an escape sequence rewrite a terminal.
Title = Annotated[str, AfterValidator(_one_line)]

_OPERATIONAL = "operational"


class Section(BaseModel):
    """Base of every section: unknown keys are errors, values are frozen once resolved."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    def shape(self) -> dict[str, Any]:
        """The values, as JSON, that may change a result: all but the operational ones."""
        values = self.model_dump(mode="json")
        for name, info in type(self).model_fields.items():
            value = getattr(self, name)
            if is_operational(info):
                del values[name]
            elif isinstance(value, Section):
                values[name] = value.shape()
            elif isinstance(value, dict):
                own = {key: one.shape() for key, one in value.items() if isinstance(one, Section)}
                values[name] |= own
        return values


def operational(default: Any, description: str) -> Any:
    """A field that says how a result is obtained and never what it is.

    It shapes no digest, so a run may be resumed with another value.
    """
    return Field(default, description=description, json_schema_extra={_OPERATIONAL: True})


def is_operational(info: FieldInfo) -> bool:
    """Whether a field was made by `operational`."""
    return isinstance(info.json_schema_extra, dict) and _OPERATIONAL in info.json_schema_extra
