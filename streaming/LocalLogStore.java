package pulsebridge;

import java.io.File;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Iterator;
import java.util.List;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.ChecksumFileSystem;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/**
 * Delta's own store of commits, but for the listing of a log on a local disk: of the files before the one that is asked
 * for only the names are read. For Janino: without generics and lambdas.
 */
public class LocalLogStore extends io.delta.storage.HDFSLogStore {

    public LocalLogStore(Configuration configuration) {
        super(configuration);
    }

    public Iterator listFrom(Path path, Configuration configuration) throws IOException {
        FileSystem files = path.getFileSystem(configuration);
        Path folder = files.makeQualified(path.getParent());
        String[] names = new File(folder.toUri().getPath()).list();
        if (names == null) {
            return super.listFrom(path, configuration); // which says what is wrong
        }
        boolean hides = files instanceof ChecksumFileSystem; // the checksums that it keeps beside each file
        List wanted = new ArrayList();
        for (int i = 0; i < names.length; i++) {
            if (names[i].compareTo(path.getName()) >= 0
                    && !(hides && names[i].startsWith(".") && names[i].endsWith(".crc"))) {
                wanted.add(names[i]);
            }
        }
        Collections.sort(wanted);
        List found = new ArrayList(wanted.size());
        for (int i = 0; i < wanted.size(); i++) {
            try {
                found.add(files.getFileStatus(new Path(folder, (String) wanted.get(i))));
            } catch (FileNotFoundException e) {
                // deleted since
            }
        }
        return found.iterator();
    }
}
