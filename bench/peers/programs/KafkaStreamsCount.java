import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.time.Duration;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.Suppressed;
import org.apache.kafka.streams.kstream.Suppressed.BufferConfig;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.kstream.Windowed;

/** The count in the DSL of Kafka Streams. The variable PEER_JOB has the job, as for the programs beside this one. */
public final class KafkaStreamsCount {
    private static final ObjectMapper JSON = new ObjectMapper();

    private KafkaStreamsCount() {}

    /** Run the job until the process is stopped. */
    public static void main(String[] arguments) throws JsonProcessingException {
        JsonNode job = JSON.readTree(System.getenv("PEER_JOB"));
        Properties settings = new Properties();
        job.get("settings").properties().forEach(one -> settings.put(one.getKey(), one.getValue().asText()));
        KafkaStreams streams = new KafkaStreams(topology(job).build(), settings);
        streams.setStateListener((state, before) -> {
            if (state == KafkaStreams.State.ERROR) {
                Runtime.getRuntime().halt(1);
            }
        });
        streams.start();
    }

    private static StreamsBuilder topology(JsonNode job) {
        TimeWindows windows = TimeWindows.ofSizeAndGrace(
            Duration.ofMillis(job.get("window_ms").asLong()), Duration.ofMillis(job.get("out_of_order_ms").asLong()));
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(job.get("source").asText(), Consumed.with(Serdes.String(), Serdes.String()))
            // The key within the value is parsed, as in all programs. It is Kafka's key too, so no topic between is needed.
            .mapValues(KafkaStreamsCount::keyOf)
            .groupByKey()
            .windowedBy(windows)
            .count(Materialized.with(Serdes.String(), Serdes.Long()))
            .suppress(Suppressed.untilWindowCloses(BufferConfig.unbounded()))
            .toStream()
            .map((window, count) -> KeyValue.pair(window.key(), result(window, count)))
            .to(job.get("target").asText(), Produced.with(Serdes.String(), Serdes.String()));
        return builder;
    }

    private static String keyOf(String text) {
        try {
            return JSON.readTree(text).get("key").asText();
        } catch (JsonProcessingException error) {
            throw new IllegalArgumentException(text, error);
        }
    }

    private static String result(Windowed<String> window, long count) {
        return JSON.createObjectNode()
            .put("key", window.key()).put("start", window.window().start()).put("count", count).toString();
    }
}
