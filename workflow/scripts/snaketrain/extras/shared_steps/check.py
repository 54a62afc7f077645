"""Finds wrong settings of a team's cache of steps, before any job."""

from collections.abc import Iterator
from pathlib import Path

from snaketrain.config.schema import Settings
from snaketrain.data.locations import address_problems
from snaketrain.extras.shared_steps.settings import members_of, shared_steps


def relevant_to(run: Settings) -> object:
    return shared_steps(run).cache


def problems_of_run(run: Settings) -> Iterator[str]:
    if (cache := shared_steps(run).cache) is None:
        return
    place = "shared_steps.cache"
    if "://" in cache.at:
        yield from (f"{place}.at: {problem}" for problem in address_problems(cache.at))
    elif not Path(cache.at).is_dir():
        yield f"{place}.at: there is no folder {cache.at}. Make it, so that all members can write there: mkdir -m 2775 {cache.at}"
    try:
        if not members_of(cache.members):
            yield f"{place}.members: {cache.members} names nobody. Add a line for each member, such as `alice ssh-ed25519 AAAA...`"
    except (OSError, ValueError) as error:
        yield f"{place}.members: {cache.members} cannot be read: {error}"
    if cache.key and not Path(cache.key).expanduser().is_file():
        yield (
            f"{place}.key: there is no file {cache.key}. Make a key with `ssh-keygen -t ed25519 -N '' -f ~/.ssh/snaketrain`, and name "
            "that, or write `key: null` to share nothing"
        )
