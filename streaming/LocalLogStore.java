package pulsebridge;

import java.io.BufferedReader;
import java.io.BufferedWriter;
import java.io.File;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.FileSystemException;
import java.nio.file.Files;
import java.nio.file.OpenOption;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Iterator;
import java.util.List;
import java.util.UUID;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.ChecksumFileSystem;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/**
 * Delta's own store of commits, but for two things on a local disk: a commit is refused where another process has
 * written that version, and of the files of a log before the one that is asked for only the names are read. For Janino:
 * without generics and lambdas.
 */
public class LocalLogStore extends io.delta.storage.HDFSLogStore {

    public LocalLogStore(Configuration configuration) {
        super(configuration);
    }

    /** A version is linked to its name, which the system refuses where there is one; a rename would replace it. */
    public void write(Path path, Iterator actions, Boolean overwrite, Configuration configuration) throws IOException {
        java.nio.file.Path file = new File(path.toUri().getPath()).toPath();
        if (overwrite.booleanValue() || !Files.isDirectory(file.getParent())) {
            super.write(path, actions, overwrite, configuration);
            return;
        }
        if (Files.exists(file)) {
            throw new FileAlreadyExistsException(file.toString());
        }
        java.nio.file.Path made = file.resolveSibling("." + file.getFileName() + "." + UUID.randomUUID() + ".tmp");
        try {
            BufferedWriter lines = Files.newBufferedWriter(
                made, StandardCharsets.UTF_8, new OpenOption[] {StandardOpenOption.CREATE_NEW});
            try {
                while (actions.hasNext()) {
                    lines.write((String) actions.next());
                    lines.write("\n");
                }
            } finally {
                lines.close();
            }
            linkOrRename(path, file, made, configuration);
        } finally {
            Files.deleteIfExists(made);
        }
    }

    protected void link(java.nio.file.Path file, java.nio.file.Path made) throws IOException {
        Files.createLink(file, made);
    }

    private void linkOrRename(Path path, java.nio.file.Path file, java.nio.file.Path made, Configuration configuration)
            throws IOException {
        try {
            link(file, made);
        } catch (FileAlreadyExistsException e) {
            throw e;
        } catch (FileSystemException e) {
            rename(path, made, configuration);
        } catch (UnsupportedOperationException e) {
            rename(path, made, configuration);
        }
    }

    /** What Delta's own store does, where the disk has no links. */
    private void rename(Path path, java.nio.file.Path made, Configuration configuration) throws IOException {
        BufferedReader lines = Files.newBufferedReader(made, StandardCharsets.UTF_8);
        try {
            super.write(path, lines.lines().iterator(), Boolean.FALSE, configuration);
        } finally {
            lines.close();
        }
    }

    public Iterator listFrom(Path path, Configuration configuration) throws IOException {
        FileSystem files = path.getFileSystem(configuration);
        Path folder = files.makeQualified(path.getParent());
        String[] names = new File(folder.toUri().getPath()).list();
        if (names == null) {
            return super.listFrom(path, configuration); // which says what is wrong
        }
        boolean hides = files instanceof ChecksumFileSystem; // the checksums that it keeps beside each file
        String first = path.getName();
        List wanted = new ArrayList();
        for (int i = 0; i < names.length; i++) {
            if (names[i].compareTo(first) >= 0 && !(hides && names[i].startsWith(".") && names[i].endsWith(".crc"))) {
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
