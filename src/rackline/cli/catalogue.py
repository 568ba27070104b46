"""`rackline chips`, `rackline clusters`, `rackline models`: list the catalogue, or show one object."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rackline.cli.options import Json, Overrides, Owner, Switch, assignments, plain, read_model_record, share_out
from rackline.cli.screen import print_json, screen
from rackline.errors import InputError

if TYPE_CHECKING:
    from rackline.catalog.base import SourcedRecord


def chips(name: str | None = None, /, *, ridge: Switch = False, sets: Overrides = None, json: Json = False) -> None:
    """List the chips, or show one with the sources of its numbers.

    Args:
        name: catalogue name or TOML file; without it, all are listed
        ridge: ridge points by data type and the time to read the memory once
        sets: KEY=VALUE replaces a number, such as hbm_bytes_per_s=20TB/s; may be repeated
        json: print JSON (SI units) and nothing else
    """
    from rackline.catalog import chip_record, names

    if ridge:
        _ridges(names("chips") if name is None else (name,), sets, json)
        return
    if name is not None:
        _show(chip_record(name, overrides=_of(chip_record(name), "chip", sets)), json)
        return
    _refuse_sets(sets)
    from rackline.hardware.chip import chip_from_record
    from rackline.report.catalogue_report import chips_table

    records = [chip_record(each) for each in names("chips")]
    if json:
        print_json({"chips": [plain(record) for record in records]})
        return
    out = screen()
    out.print(chips_table([chip_from_record(record) for record in records], width=out.width))


def clusters(name: str | None = None, /, *, sets: Overrides = None, json: Json = False) -> None:
    """List the clusters, or show one with the sources of its numbers, its racks, switches, cables and paths.

    Args:
        name: catalogue name or TOML file; without it, all are listed
        sets: KEY=VALUE replaces a number, such as usd_per_chip_hour=2.5; may be repeated
        json: print JSON (SI units) and nothing else
    """
    from rackline.catalog import cluster_record, names

    if name is not None:
        from rackline.hardware import cluster
        from rackline.report.rack_report import rack_data, rack_table

        given = _of(cluster_record(name), "cluster", sets)
        record, found = cluster_record(name, overrides=given), cluster(name, given or None)
        if json:
            print_json({**plain(record), "rack": rack_data(found)})
            return
        _show(record, json)
        out = screen()
        out.print()
        out.print(rack_table(found))
        return
    _refuse_sets(sets)
    from rackline.report.catalogue_report import clusters_table

    records = [cluster_record(each) for each in names("clusters")]
    if json:
        print_json({"clusters": [plain(record) for record in records]})
        return
    out = screen()
    out.print(clusters_table(records, width=out.width))


def memory(name: str | None = None, /, *, sets: Overrides = None, json: Json = False) -> None:
    """List the memory tiers, or show one with the sources of its numbers.

    Args:
        name: catalogue name or TOML file; without it, all are listed
        sets: KEY=VALUE replaces a number, such as usd_per_byte=5e-9; may be repeated
        json: print JSON (SI units) and nothing else
    """
    from rackline.catalog import memory_record, names

    if name is not None:
        _show(memory_record(name, overrides=_of(memory_record(name), "memory tier", sets)), json)
        return
    _refuse_sets(sets)
    from rackline.report.lecture_tables import memory_table

    records = [memory_record(each) for each in names("memory")]
    if json:
        print_json({"memory": [plain(record) for record in records]})
        return
    out = screen()
    out.print(memory_table(records, width=out.width))


def models(
    name: str | None = None,
    /,
    *,
    kv: Switch = False,
    on: str = "h100-sxm",
    dtype: str = "fp8",
    sets: Overrides = None,
    json: Json = False,
) -> None:
    """List the models, or show one: parameters by kind, FLOP of a token against context, KV cache of a token.

    Args:
        name: catalogue name, Hugging Face id, TOML file or config.json; without it, all are listed
        kv: cache of a token and of long sequences, crossover context and balance batch
        on: chip of crossover and balance batch, for --kv
        dtype: data type of weights and multiply on it, for --kv
        sets: KEY=VALUE replaces a number, such as num_layers=40; may be repeated
        json: print JSON (SI units) and nothing else
    """
    from rackline.arch import build_model
    from rackline.catalog import model_record, names
    from rackline.report.catalogue_report import model_data, model_report, models_table

    out = screen()
    if kv:
        _caches(names("models") if name is None else (name,), on, dtype, sets, json)
        return
    if name is not None:
        record = read_model_record(name)
        given = _of(record, "model", sets)
        record = read_model_record(name, given) if given else record
        model = build_model(record)
        if json:
            print_json({**plain(record), **model_data(record, model)})
        else:
            out.print(model_report(record, model))
        return
    _refuse_sets(sets)
    found = [(record, build_model(record)) for record in (model_record(each) for each in names("models"))]
    if json:
        print_json({"models": [{**plain(record), **model_data(record, model)} for record, model in found]})
        return
    out.print(models_table(found, width=out.width))


def _ridges(chosen: Sequence[str], sets: Sequence[str] | None, json: bool) -> None:
    from rackline.hardware import chip
    from rackline.report.lecture_tables import ridge_table
    from rackline.serving.crossover import ridges

    _refuse_sets(sets)
    found = ridges([chip(each) for each in chosen])
    if json:
        print_json({"ridges": [each.as_dict() for each in found]})
    else:
        screen().print(ridge_table(found))


def _caches(chosen: Sequence[str], on: str, dtype: str, sets: Sequence[str] | None, json: bool) -> None:
    from rackline.arch import build_model
    from rackline.hardware import chip
    from rackline.parallel.precision import storage_bytes
    from rackline.report.lecture_tables import cache_table
    from rackline.serving.crossover import cache_of_model

    _refuse_sets(sets)
    if dtype not in ("bf16", "fp16", "fp8", "fp4", "int8"):
        raise InputError(what="--dtype", given=dtype, allowed="bf16, fp16, fp8, fp4 or int8")
    where, types = chip(on), {name: storage_bytes(name) for name in ("bf16", "fp8")}
    found = [
        cache_of_model(
            build_model(read_model_record(each)), where, dtype=dtype, kv_types=types, contexts=(32_000, 128_000)
        )
        for each in chosen
    ]
    if json:
        print_json({"chip": where.name, "dtype": dtype, "models": [each.as_dict() for each in found]})
    else:
        out = screen()
        out.print(cache_table(found, on=where.name, dtype=dtype, width=out.width))


def _of(record: SourcedRecord, kind: str, sets: Sequence[str] | None) -> dict[str, object]:
    from rackline.catalog import settable_keys

    return share_out(assignments(sets), [Owner(name=kind, keys=tuple(settable_keys(record)))])[0]


def _refuse_sets(sets: Sequence[str] | None) -> None:
    if sets:
        raise InputError(what="--set", given=sets[0], allowed="only together with the name of one object")


def _show(record: SourcedRecord, json: bool) -> None:
    if json:
        print_json(plain(record))
        return
    from rackline.report.catalogue_report import record_report

    screen().print(record_report(record))
