import com.fasterxml.jackson.databind.ObjectMapper;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.TreeMap;
import org.apache.flink.table.api.EnvironmentSettings;
import org.apache.flink.table.api.TableEnvironment;
import org.apache.flink.types.Row;
import org.apache.flink.types.RowKind;

/** `FlinkTable FILE.sql`: makes the table that the file names `pods`, reads its topic to the end, and prints name and phase by key as JSON. */
public class FlinkTable {
    public static void main(String[] args) throws Exception {
        TableEnvironment tables = TableEnvironment.create(EnvironmentSettings.inStreamingMode());
        tables.getConfig().set("parallelism.default", "1");
        tables.executeSql(Files.readString(Path.of(args[0])).replaceAll(";\\s*$", ""));
        Map<String, Object> held = new TreeMap<>();
        String asked = "SELECT object_key, metadata.name, status.phase FROM pods /*+ OPTIONS('scan.bounded.mode' = 'latest-offset') */";
        try (var rows = tables.executeSql(asked).collect()) {
            while (rows.hasNext()) {
                Row row = rows.next();
                String key = String.valueOf(row.getField(0));
                if (row.getKind() == RowKind.DELETE || row.getKind() == RowKind.UPDATE_BEFORE) held.remove(key);
                else held.put(key, new Object[] {row.getField(1), row.getField(2)});
            }
        }
        System.out.println(new ObjectMapper().writeValueAsString(held));
        System.exit(0);
    }
}
