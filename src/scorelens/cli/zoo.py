"""`scorelens zoo`: list, fetch and publish trained networks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from scorelens.networks.zoo import zoo_folder, zoo_names
from scorelens.networks.zoo_source import describe, known_networks, pull, push, zoo_source
from scorelens.report.tables import markdown


def zoo_list(*, source: str | None = None) -> None:
    """List the trained networks: those on this machine, and those that can be fetched.

    Args:
        source: a folder, a web address or a hub repository; by default $SCORELENS_ZOO_SOURCE or the zoo of Scorelens.
    """
    here = {name: folder for name in zoo_names() if (folder := zoo_folder(name))}
    index = known_networks(source, refresh=True)
    entries = {**index, **{name: describe(folder) for name, folder in here.items()}}
    print(markdown(["network", "data", "parameters", "r2 with another seed", "size", "on this machine"], [
        [name, f"{entry['data']} {' x '.join(map(str, entry['shape']))}", f"{entry['parameters']:,}",
         str(entry.get("r2", "")), f"{sum(file['bytes'] for file in entry['files'].values()) / 1e6:.1f} MB",
         str(here.get(name, "no"))] for name, entry in sorted(entries.items())]))
    print(f"\nsource: {source or zoo_source()}; scorelens zoo pull NAME fetches a network, load_network(NAME) does so "
          "when it is needed")


def zoo_pull(names: Sequence[str], *, source: str | None = None, out: Path | None = None) -> list[Path]:
    """Fetch trained networks by name; an interrupted download resumes.

    Args:
        names: of networks: see scorelens zoo list.
        source: a folder, a web address or a hub repository; by default $SCORELENS_ZOO_SOURCE or the zoo of Scorelens.
        out: folder to put them in, to be carried to another machine; by default Scorelens' cache.
    """
    folders = []
    for name in names:
        local = zoo_folder(name) if source is None and out is None else None
        folders.append(local or pull(name, source, out))
        print(f"{name}: {folders[-1]}")
    return folders


def zoo_push(network: str, *, to: str, name: str | None = None) -> str:
    """Publish a trained network with its card, in a folder or a hub repository.

    Args:
        network: the folder of a training, or a name in the zoo.
        to: a folder, which any web server can offer, or a hub repository such as me/my-zoo (log in with hf auth login).
        name: its name there, by default that of its folder.
    """
    place = push(zoo_folder(network) or Path(network), to, name=name)
    print(f"published {place}; fetch it with: scorelens zoo pull {place.rsplit('/')[-1]} --source {to}")
    return place
