import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.UUID;
import org.apache.pulsar.client.api.HashingScheme;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;

/**
 * Sends three commands to each device with Pulsar's Java client alone. docs/guides/any-client.md describes the messages, and how to
 * fetch the jars.
 *
 * <p>Run it: java -cp 'jars/*' examples/SendCommands.java pulsar://127.0.0.1:6650 public/pulsebridge-system press-3 press-4
 */
public class SendCommands {
    public static void main(String[] arguments) throws PulsarClientException {
        List<String> devices = List.of(arguments).subList(2, arguments.length);
        String run = UUID.randomUUID().toString().substring(0, 8);
        try (PulsarClient client = PulsarClient.builder().serviceUrl(arguments[0]).build();
                Producer<byte[]> producer =
                        client.newProducer()
                                .topic("persistent://" + arguments[1] + "/commands")
                                // The default is another hash, which would put devices into other partitions.
                                .hashingScheme(HashingScheme.Murmur3_32Hash)
                                .create()) {
            for (int step = 1; step <= 3; step++) {
                for (String device : devices) {
                    long nowMs = System.currentTimeMillis();
                    // send() returns when Pulsar has stored the command; sendAsync() is faster for many.
                    MessageId stored =
                            producer.newMessage()
                                    .key(device)
                                    .value(("{\"step\": " + step + "}").getBytes(StandardCharsets.UTF_8))
                                    .property("pb.v", "1")
                                    .property("command.id", run + "-" + step)
                                    .property("command.device", device)
                                    .property("command.mqtt_topic", "devices/" + device + "/commands")
                                    .property("command.expires_at_ms", Long.toString(nowMs + 3_600_000))
                                    .property("command.emitted_at_us", Long.toString(nowMs * 1000))
                                    .send();
                    System.out.println(run + "-" + step + " for " + device + ": stored at " + stored);
                }
            }
        }
    }
}
