"""Sweeps on Ray and in an S3-compatible store: real servers on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import rackline as rl
from rackline.errors import InputError
from rackline.sweeps.read import Results
from rackline.sweeps.run import prepare
from rackline.sweeps.store import SHARDS, LostStoreError, store_of
from rackline.sweeps.workers import Ray

SPACE: dict[str, Any] = {
    "options": {
        "model": "llama-3.1-8b",
        "on": "l40s-8",
        "layout": "tp=1",
        "batch": {"linear": [1, 60], "num": 60},
        "context": {"linear": [1000, 3000], "num": 50},
    },
    "objectives": {"usd_per_mtok_output": "min", "server_s": "min"},
    "output": {"rows_per_shard": 100},
}


def shards(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / SHARDS).iterdir()}


def _patiently(start: Callable[[], Any]) -> Any:
    """A node of Ray, which gives up after 30 s of wall time; a busy machine gets four turns."""
    for _ in range(3):
        with suppress(Exception):
            return start()
    return start()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_node_of_ray_that_dies_loses_nothing(tmp_path: Path) -> None:
    """Three nodes on this machine; one is killed while it works."""
    pytest.importorskip("ray")
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    try:
        _patiently(lambda: cluster.add_node(num_cpus=1, include_dashboard=False))
        nodes = [_patiently(lambda: cluster.add_node(num_cpus=1)) for _ in range(2)]
        cluster.wait_for_nodes(timeout=600)
        ray.init(address=cluster.address, log_to_driver=False)
        prepared = prepare(SPACE)
        store_of(str(tmp_path / "ray")).prepare()
        workers = Ray(job=prepared.job, store=str(tmp_path / "ray"), num=3, address=cluster.address)
        done = []
        for one in workers.run(iter(prepared.tasks)):
            done.append(one.name)
            if len(done) == 5:
                cluster.remove_node(nodes[0], allow_graceful=False)
        assert sorted(done) == sorted(name for name, _ in prepared.tasks)  # none lost, none twice
    finally:
        ray.shutdown()
        cluster.shutdown()
    rl.sweep(SPACE, out=str(tmp_path / "here"), workers=1)
    written = {name: data for name, data in shards(tmp_path / "ray").items() if not name.startswith(".")}
    assert written == shards(tmp_path / "here")


def test_without_ray_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match="the extra ray"):
        rl.sweep(SPACE, out=str(tmp_path / "a"), ray="local")


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Any]]:
    """An S3 server of moto on a free port, and a bucket."""
    server_module = pytest.importorskip("moto.server")
    s3fs = pytest.importorskip("s3fs")
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "none")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "none")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    s3fs.S3FileSystem.clear_instance_cache()
    s3fs.S3FileSystem().makedirs("space", exist_ok=True)
    yield "s3://space/one", server
    server.stop()
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.mark.filterwarnings("ignore")
def test_an_s3_store_holds_the_same_shards_and_is_resumed(bucket: tuple[str, Any], tmp_path: Path) -> None:
    address, _ = bucket
    first = rl.sweep(SPACE, out=address, workers=2).result
    assert first.new_shards == first.shards == 30
    rl.sweep(SPACE, out=str(tmp_path / "here"), workers=1)
    remote = store_of(address)
    names = remote.names()
    assert {f"{name}.parquet": remote.read(f"{SHARDS}/{name}.parquet") for name in names} == shards(tmp_path / "here")
    for name in sorted(names)[:7]:
        remote.system.rm(f"space/one/{SHARDS}/{name}.parquet")  # type: ignore[attr-defined]
    assert rl.sweep(SPACE, out=address, workers=1).result.new_shards == 7
    found = Results.of(address)
    assert found.scan().collect().height == 3000
    here = Results.of(str(tmp_path / "here"))
    objectives: Any = {"usd_per_mtok_output": "min", "server_s": "min"}
    assert found.front(objectives).equals(here.front(objectives))


@pytest.mark.filterwarnings("ignore")
def test_a_store_that_is_gone_is_said(bucket: tuple[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    address, server = bucket
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setattr(pytest.importorskip("s3fs").S3FileSystem, "retries", 1)  # else half a minute of waiting
    server.stop()
    with pytest.raises(LostStoreError, match="goes on where it stopped"):
        rl.sweep(SPACE, out=address, workers=1)
