import com.hivemq.embedded.EmbeddedHiveMQ;
import java.nio.file.Path;

/** HiveMQ CE in the folder of its argument. Unlike its own command, it accepts clients without an extension. */
class HiveMq {
    public static void main(String[] arguments) {
        Path home = Path.of(arguments[0]);
        EmbeddedHiveMQ broker = EmbeddedHiveMQ.builder()
                .withConfigurationFolder(home.resolve("conf"))
                .withDataFolder(home.resolve("data"))
                .withExtensionsFolder(home.resolve("extensions"))
                .build();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> broker.stop().join()));
        broker.start().join();
    }
}
