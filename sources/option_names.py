"""The names of all options: our own with their meaning, and what becomes of those of other connectors.

Data only. ``sources.options`` gives the values types; ``sources.option_docs`` prints the tables for users.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from bridge.connection_options import CONNECTION_OPTIONS

__all__ = ["ALIASES", "INSTEAD", "NO_EFFECT", "ONLY", "OPTIONS", "REFUSED", "SAME_AS_CLIENT"]

OPTIONS: Final[Mapping[str, str]] = {
    **{name: told for name, told in CONNECTION_OPTIONS.items() if name.endswith(".url")},
    "topic": "The topic to read. One of topic, topics and topicsPattern is required.",
    "topics": "The topics to read, separated by commas.",
    "topicsPattern": "tenant/namespace/ and a regular expression for the rest of the name, matched whole; only the last part is a pattern. Streaming: topics made later are found.",
    "waitingForNonExistedTopic": "Streaming: whether a topic that is not there yet is waited for (default false: refused).",
    "startingOffsets": "Where a new query begins: earliest, latest, or JSON, see below. Default: latest for streaming, earliest for batch.",
    "endingOffsets": "Batch: where it ends, likewise; default latest.",
    "startingTime": "Publish time to begin at, ms since the epoch, or JSON: {topic or partition: ms}; instead of startingOffsets.",
    "endingTime": "Batch: publish time to end before, likewise; instead of endingOffsets.",
    "failOnDataLoss": "Whether to fail when entries are gone (default true), or to warn and go on.",
    "maxBytesPerTrigger": "Most bytes of a trigger, as stored.",
    "maxEntriesPerTrigger": "Most entries of a trigger; a producer's batch is one entry.",
    "maxRowsPerTrigger": "Most rows of a trigger, as far as the rows per entry seen so far can tell.",
    "minRowsPerTrigger": "Streaming: fewer rows wait for more, as far as the rows per entry can tell; not with AvailableNow.",
    "maxTriggerDelay": "How long they wait at most, like 90s, 15m or 1h, or in ms (default 15m).",
    "predefinedSubscription": "Streaming: name of the durable subscription that holds what is not read yet; required.",
    "subscriptionPrefix": "The same, where predefinedSubscription is not given: the name is the prefix itself, so that a restart finds it.",
    "reuseSubscription": "What a new checkpoint does with a subscription in use before: position or resolve; default: fail.",
    "subscriptionWaitMs": "How long to wait for a subscription that another consumer holds, in ms (default 15000).",
    "minPartitions": "Least number of tasks; entry ranges are split to reach it.",
    "maxBytesPerPartition": "Most bytes of one task; a longer range is split by entries.",
    "hotTailBytes": "Streaming: most bytes of the newest messages that the driver keeps in memory; a batch that lies there starts no Python worker (default 16777216; 0: none). Not used with minPartitions.",
    "readIdleTimeout": "How long a task waits for the next entry before it asks what became of it, in ms (default 60000).",
    "columns": "The columns to build, separated by commas; default all.",
    "decode": "none (default: value holds the raw bytes); value: value is decoded by the topic's Pulsar schema; fields: likewise, and the fields of a record are columns of their own, as StreamNative's connector gives them.",
    "allowDifferentTopicSchemas": "True: topics of different schemas are read as raw bytes, as they are without decode.",
    "decodeErrors": "What a payload does that its schema does not decode: fail (default), or null, which leaves the raw bytes in payload.",
    "keyEncoding": "text (default: __key is the key as a string); base64: the producers set keys as bytes, which Pulsar keeps as base64, and __key is those bytes.",
    "pushFilters": "Batch: whether filters on __topic, partition and __publishTime spare entries. Default: true on a Spark that keeps them apart for each use of a DataFrame (4.3 and later); 4.1 and 4.2 give a DataFrame that is used again the rows of the filters pushed last, so there set it only where each query has a load() of its own.",
    "publishTimeSlackMs": "Batch: how far publish times may be out of the order of the topic for a filter on __publishTime to spare entries, in ms (default 86400000); -1: such a filter spares none.",
    **{name: told for name, told in CONNECTION_OPTIONS.items() if name.startswith("pulsar.client.")},
}
"""Every option of ours with its meaning; the names as they are documented, compared without case."""

ALIASES: Final[Mapping[str, str]] = {"pollTimeoutMs": "readIdleTimeout"}
"""Other names for options of ours."""

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
    "tlsProtocols": "not supported: TLS 1.2 and 1.3 are spoken",
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
    "readerName": "readers have names of their own",
    "receiverQueueSize": "the queue is bounded in bytes, by the size of the entries",
    "resetIncludeHead": "startingOffsets always names the first entry that is read",
    "subscriptionInitialPosition": "give startingOffsets",
    "subscriptionMode": "the tasks' readers are not durable, predefinedSubscription is",
    "subscriptionName": "the tasks' readers have names of their own; the hold is predefinedSubscription",
    "subscriptionRolePrefix": "the tasks' readers have names of their own; the hold is predefinedSubscription",
}

NO_EFFECT: Final[Mapping[str, str]] = {
    **{f"pulsar.{part}.{name}": "tunes the Java client" for part in ("client", "admin") for name in _CLIENT_NO_EFFECT},
    "pulsar.admin.operationTimeoutMs": "tunes the Java client",
    "pulsar.admin.connectionTimeoutMs": "tunes the Java client",
    **{f"pulsar.reader.{name}": why for name, why in _READER_NO_EFFECT.items()},
    "pulsar.producer.*": "nothing is written",
    "topic.schema.class": "schemas come from Pulsar, see decode",
    "includeHeaders": "__messageProperties is always there",
    "fetchOffset.numRetries": "Pulsar is asked again for half a minute",
    "fetchOffset.retryIntervalMs": "Pulsar is asked again for half a minute",
}
"""Options of other connectors that are accepted and change nothing, each with the reason; said once, in one line."""

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
"""Options that may say one thing alone, which is what is done anyway; the reason why anything else is refused."""

SAME_AS_CLIENT: Final = (
    "authPluginClassName", "authParams", "authParamMap", "tlsTrustCertsFilePath", "tlsCertificateFilePath",
    "tlsKeyFilePath", "tlsHostnameVerificationEnable",
)  # fmt: skip
"""Options of ``pulsar.admin.``: they stand for those of ``pulsar.client.`` where these are not given, else they must agree."""

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
"""Options of other connectors that are refused, each with what to do instead."""

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
"""Names of Spark's Kafka source, and of ours what stands for each."""
