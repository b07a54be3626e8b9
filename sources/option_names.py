"""The names of all options: our own with their meaning, and those of other connectors.

Data only. ``sources.options`` gives the values types; ``sources.option_docs`` prints the tables for users.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from bridge.spark.connection_options import CONNECTION_OPTIONS

__all__ = ["ALIASES", "INSTEAD", "NO_EFFECT", "ONLY", "OPTIONS", "REFUSED", "SAME_AS_CLIENT"]

OPTIONS: Final[Mapping[str, str]] = {
    **{name: meaning for name, meaning in CONNECTION_OPTIONS.items() if name.endswith(".url")},
    "topic": "The topic to read. One of topic, topics and topicsPattern is required.",
    "topics": "The topics to read, separated by commas.",
    "topicsPattern": "tenant/namespace/ and a regular expression that matches the whole rest of the name; only the last part is a pattern. Streaming: also finds topics created later.",
    "waitingForNonExistedTopic": "Streaming: whether to wait for a topic that does not exist yet (default false: refused).",
    "startingOffsets": "Start of a new query: earliest, latest, or JSON, see below. Default: latest for streaming, earliest for batch.",
    "endingOffsets": "Batch: end of the query, in the same form; default latest.",
    "startingTime": "Publish time to begin at, ms since the epoch, or JSON: {topic or partition: ms}; instead of startingOffsets.",
    "endingTime": "Batch: publish time to end before, in the same form; instead of endingOffsets.",
    "failOnDataLoss": "Whether to fail if entries are gone (default true), or to warn and continue.",
    "maxBytesPerTrigger": "Most bytes of a trigger, as stored.",
    "maxEntriesPerTrigger": "Most entries of a trigger; a producer's batch is one entry.",
    "maxRowsPerTrigger": "Most rows of a trigger, estimated from the rows per entry so far.",
    "minRowsPerTrigger": "Streaming: least rows of a trigger, estimated likewise; fewer wait for more. Not with AvailableNow.",
    "maxTriggerDelay": "Longest wait for minRowsPerTrigger, like 90s, 15m or 1h, or in ms (default 15m).",
    "predefinedSubscription": "Streaming: name of the durable subscription that retains unread messages; required.",
    "subscriptionPrefix": "The same, if predefinedSubscription is not given: the name is the prefix itself, so that a restart finds it.",
    "reuseSubscription": "How a new checkpoint uses a subscription in use before: position or resolve; default: fail.",
    "subscriptionWaitMs": "How long to wait for a subscription that another consumer uses, in ms (default 15000).",
    "minPartitions": "Least number of tasks; entry ranges are split to reach it. If several readers of a bookie are slower than one, limit what it reads ahead: dbStorage_readAheadCacheBatchBytesSize (4 MiB suffice).",
    "maxBytesPerPartition": "Most bytes of one task; a longer range is split by entries.",
    "hotTailBytes": "Streaming: most bytes of the newest messages in the driver's memory; a batch within them starts no Python worker (default 16777216; 0: none). Not used with minPartitions. Pulsar itself delays each new message by up to 10 ms, unless the brokers have managedLedgerNewEntriesCheckDelayInMillis=0.",
    "readIdleTimeout": "How long a task waits for the next entry before it asks Pulsar about it, in ms (default 60000).",
    "columns": "The columns to build, separated by commas; default all.",
    "decode": "none (default: value has the raw bytes); value: value is decoded by the topic's Pulsar schema; fields: likewise, and the fields of a record are separate columns, as in StreamNative's connector.",
    "allowDifferentTopicSchemas": "True: topics of different schemas are read as raw bytes, as without decode.",
    "decodeErrors": "Result for a payload that its schema does not decode: fail (default), or null, with the raw bytes in payload.",
    "keyEncoding": "text (default: __key is the key as a string); base64: the producers set keys as bytes, which Pulsar stores as base64, and __key is those bytes.",
    "pushFilters": "Batch: whether filters on __topic, partition and __publishTime skip entries. Default: true on Spark 4.3 and later, which stores them for each use of a DataFrame. 4.1 and 4.2 apply the filters pushed last to all uses of a DataFrame: there, set it only if each query has its own load().",
    "publishTimeSlackMs": "Batch: how far publish times may be out of topic order for a filter on __publishTime to skip entries, in ms (default 86400000); -1: such a filter skips none.",
    **{name: meaning for name, meaning in CONNECTION_OPTIONS.items() if name.startswith("pulsar.client.")},
}
"""Our options with their meaning. Names are as documented, compared without case."""

ALIASES: Final[Mapping[str, str]] = {"pollTimeoutMs": "readIdleTimeout"}
"""Other names of our options."""

_TRUST: Final = "give pulsar.client.tlsTrustCertsFilePath a PEM file of the authorities to trust"
_STORE: Final = "the client reads PEM files: export the store (keytool -exportcert, openssl pkcs12) and give tlsTrustCertsFilePath, tlsCertificateFilePath and tlsKeyFilePath"
_PROXY: Final = "not supported: give service.url and admin.url addresses that can be reached from driver and executors"

_CLIENT_NO_EFFECT: Final = (
    "autoCertRefreshSeconds", "concurrentLookupRequest", "connectionMaxIdleSeconds", "connectionsPerBroker",
    "description", "enableBusyWait", "enableTransaction", "initialBackoffIntervalNanos",
    "keepAliveIntervalSeconds", "lookupTimeoutMs", "maxBackoffIntervalNanos", "maxLookupRedirects",
    "maxLookupRequest", "maxNumberOfRejectedRequestPerConnection", "memoryLimitBytes", "numIoThreads",
    "numListenerThreads", "readTimeoutMs", "requestTimeoutMs", "serviceUrlQuarantineInitDurationMs",
    "serviceUrlQuarantineMaxDurationMs", "sslProvider", "statsIntervalSeconds", "tracingEnabled", "useTcpNoDelay",
)  # fmt: skip
_CLIENT_REFUSED: Final[Mapping[str, str]] = {
    "dnsLookupBindAddress": "not supported: name resolution is the system's",
    "dnsLookupBindPort": "not supported: name resolution is the system's",
    "dnsServerAddresses": "not supported: name resolution is the system's",
    "listenerName": "not supported: give service.url the address of that listener",
    "lookupProperties": "not supported: brokers choose by the topic alone",
    "originalPrincipal": "not supported: connect with the credentials of the role itself",
    "proxyProtocol": _PROXY,
    "proxyServiceUrl": _PROXY,
    "serviceUrl": "give service.url",
    "socks5ProxyAddress": _PROXY,
    "socks5ProxyPassword": _PROXY,
    "socks5ProxyScope": _PROXY,
    "socks5ProxyUsername": _PROXY,
    "sslFactoryPlugin": "a Java class; " + _TRUST,
    "sslFactoryPluginParams": "a Java class's; " + _TRUST,
    "tlsCiphers": "not supported: ciphers are those of OpenSSL's default",
    "tlsKeyStorePassword": _STORE,
    "tlsKeyStorePath": _STORE,
    "tlsKeyStoreType": _STORE,
    "tlsProtocols": "not supported: the client uses TLS 1.2 and 1.3",
    "tlsTrustStorePassword": _STORE,
    "tlsTrustStorePath": _STORE,
    "tlsTrustStoreType": _STORE,
}
_READER_NO_EFFECT: Final[Mapping[str, str]] = {
    "autoAckOldestChunkedMessageOnQueueFull": "a chunked message is read whole or fails the task",
    "autoUpdatePartitions": "new partitions are always found",
    "autoUpdatePartitionsIntervalSeconds": "new partitions are found at each trigger",
    "expireTimeOfIncompleteChunkedMessageMillis": "a chunked message is read whole or fails the task",
    "maxPendingChunkedMessage": "a chunked message is read whole or fails the task",
    "poolMessages": "tunes the Java client",
    "readerName": "the source names its readers",
    "receiverQueueSize": "the queue is bounded in bytes, by the size of the entries",
    "resetIncludeHead": "startingOffsets always names the first entry that is read",
    "subscriptionInitialPosition": "give startingOffsets",
    "subscriptionMode": "the tasks' readers are not durable, predefinedSubscription is",
    "subscriptionName": "the source names its readers; predefinedSubscription retains the data",
    "subscriptionRolePrefix": "the source names its readers; predefinedSubscription retains the data",
}

NO_EFFECT: Final[Mapping[str, str]] = {
    **{f"pulsar.{part}.{name}": "tunes the Java client" for part in ("client", "admin") for name in _CLIENT_NO_EFFECT},
    "pulsar.admin.operationTimeoutMs": "tunes the Java client",
    "pulsar.admin.connectionTimeoutMs": "tunes the Java client",
    **{f"pulsar.reader.{name}": why for name, why in _READER_NO_EFFECT.items()},
    "pulsar.producer.*": "nothing is written",
    "topic.schema.class": "schemas come from Pulsar, see decode",
    "includeHeaders": "__messageProperties is always a column",
    "fetchOffset.numRetries": "requests to Pulsar are retried for half a minute",
    "fetchOffset.retryIntervalMs": "requests to Pulsar are retried for half a minute",
}
"""Options of other connectors that are accepted without effect, with the reason. Logged once, in one line."""

ONLY: Final[Mapping[str, tuple[str, str]]] = {
    **{
        f"pulsar.{part}.{name}": (value, why)
        for part in ("client", "admin")
        for name, value, why in (
            ("tlsAllowInsecureConnection", "false", "certificates are always checked: " + _TRUST),
            ("useKeyStoreTls", "false", _STORE),
        )
    },
    "pulsar.reader.readCompacted": (
        "false",
        "every message is read, each entry accounted for: keep the newest of a key with a window or MERGE",
    ),
    "pulsar.reader.cryptoFailureAction": (
        "FAIL",
        "messages that cannot be read fail the query, they are never skipped",
    ),
}
"""Options with one accepted value, the actual behaviour. Each has the reason why other values are refused."""

SAME_AS_CLIENT: Final = (
    "authPluginClassName", "authParams", "authParamMap", "tlsTrustCertsFilePath", "tlsCertificateFilePath",
    "tlsKeyFilePath", "tlsHostnameVerificationEnable",
)  # fmt: skip
"""Options of ``pulsar.admin.``: they replace missing ones of ``pulsar.client.``, else they must equal them."""

REFUSED: Final[Mapping[str, str]] = {
    **{
        f"pulsar.{part}.{name}": why
        for part in ("client", "admin")
        for name, why in _CLIENT_REFUSED.items()
        if (part, name) != ("admin", "serviceUrl")
    },
    "pulsar.admin.serviceUrl": "give admin.url",
    "pulsar.reader.cryptoKeyReader": "a Java class; encrypted messages are not read",
    "pulsar.reader.readerListener": "a Java class; rows are given to Spark",
    "pulsar.reader.topicNames": "give topic, topics or topicsPattern",
    "assign": "give startingOffsets for the partitions; all partitions of a topic are read",
    "groupIdPrefix": "give predefinedSubscription",
}
"""Options of other connectors that are refused, with the alternative."""

INSTEAD: Final[Mapping[str, str]] = {
    "kafka.bootstrap.servers": "service.url",
    "kafka.group.id": "predefinedSubscription",
    "kafkaConsumer.pollTimeoutMs": "readIdleTimeout",
    "maxOffsetsPerTrigger": "maxRowsPerTrigger",
    "minOffsetsPerTrigger": "minRowsPerTrigger",
    "maxRecordsPerPartition": "maxBytesPerPartition",
    "startingOffsetsByTimestamp": "startingTime",
    "startingOffsetsByTimestampStrategy": "startingTime",
    "endingOffsetsByTimestamp": "endingTime",
    "startingTimestamp": "startingTime",
    "endingTimestamp": "endingTime",
    "subscribe": "topics",
    "subscribePattern": "topicsPattern",
}
"""Options of Spark's Kafka source, with our option for each."""
