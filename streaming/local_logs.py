"""Delta's logs on local disks: commits that two processes cannot both make, and listings by name.

**Commits.** Delta's own store looks whether a version is there, and renames a file to its name then; on a disk a rename
replaces. Of two processes that commit one version at once (a job, and ``pulsebridge tables rebuild`` beside it) both
are told that they did, and the commit of one is gone. Here the file is linked to its name, which the system refuses
where there is one, and Delta tries again behind it, as it does on other storage.

**Listings.** Before each micro-batch, and several times in it, Delta asks for the commits behind the last one that it
knows. Hadoop answers for a local disk by asking the system four things of every file of the log: of 500 commits that
takes 50 ms, of a day of commits some seconds, each time, and a query with nothing to do asks twice a second. Here the
names are read, and those files alone are looked at that are asked for: what ``delta.enableFastS3AListFrom`` is for S3.

The driver's JVM gets ``LocalLogStore.java`` for both, which is Delta's own store in all else. Janino, which compiles
what Spark generates, compiles it, so that no jar has to be at hand.
"""

from __future__ import annotations

import tempfile
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["use_local_log_store"]

_SOURCE: Final = "LocalLogStore.java"
_CLASS: Final = "pulsebridge.LocalLogStore"
_NAMED: Final = ("spark.delta.logStore.file.impl", "spark.delta.logStore.class")


def use_local_log_store(spark: SparkSession) -> bool:
    """Have this session's JVM use our store of commits on local disks, unless the session names one itself.

    In local mode alone: executors of a cluster would be told the name of a class that they do not have. Returns whether
    it does; where this Spark or this Delta has not what it takes, all goes on as ever.
    """
    from py4j.protocol import Py4JError

    jvm: Any = spark.sparkContext._jvm
    conf = jvm.org.apache.spark.SparkEnv.get().conf()
    if any(conf.contains(name) for name in _NAMED):
        return bool(conf.get(_NAMED[0], "") == _CLASS)
    if not f"{spark.sparkContext.master}[".startswith("local["):
        return False
    try:
        _load(jvm)
    except Py4JError:
        return False
    conf.set(_NAMED[0], _CLASS)
    return True


def _load(jvm: Any) -> None:
    """Compile it, and have it loaded by the loader that has Delta."""
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(loader)
    compiler.cook(files("streaming").joinpath(_SOURCE).read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory(prefix="pulsebridge-classes-") as folder:
        for name, body in compiler.getBytecodes().items():
            file = Path(folder, *name.split(".")).with_suffix(".class")
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(bytes(body))
        loader.addURL(jvm.java.io.File(folder).toURI().toURL())
        jvm.java.lang.Class.forName(_CLASS, True, loader)
