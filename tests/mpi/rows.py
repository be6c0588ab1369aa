"""Looks whether a file of `weft bench mpi` has every row: rows.py FILE. What is missing must be told as left out, and weft lacks none."""
import json
import sys

METRICS = "rtt bandwidth rate barrier allreduce put put.bandwidth get get.bandwidth nbody nbody.speedup"

document = json.load(open(sys.argv[1]))
rows = {}
for row in document["rows"]:
    assert row["median"] > 0 and row["n"] > 0, row
    rows.setdefault(row["system"], set()).add((row["metric"], row["size"]))
notes = document.get("left_out", [])
for mpi in "openmpi", "mpich":
    expected = rows[mpi + "-weft"]
    assert {metric for metric, _ in expected} == {"mpi." + name for name in METRICS.split()}, expected
    for transport in "weft", "own", "tcp", "shm":
        system = f"{mpi}-{transport}"
        missing = expected - rows.get(system, set())
        told = [note for note in notes if note.startswith(system + ",")]
        print(f"{system}: {len(rows.get(system, ()))} rows", *told, sep="\n  ")
        assert not told if transport in ("weft", "own") else bool(told) == bool(missing), (system, missing, told)
        assert transport not in ("weft", "own") or not missing, (system, missing)
