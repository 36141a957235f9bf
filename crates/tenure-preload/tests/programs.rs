//! Real programs under the library: with every set of options they write the same and
//! end the same as without it. Programs that are not installed are skipped.

mod common;

use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};

use common::*;
use libtest_mimic::{Completion, Trial};

/// A shell script, run in a folder of its own, and the tools that it needs.
struct Program {
    name: &'static str,
    needs: &'static [&'static str],
    script: &'static str,
}

const PROGRAMS: [Program; 9] = [
    Program {
        name: "python",
        needs: &["python3"],
        script: r#"
python3 - <<'END'
import hashlib, mmap, subprocess, sys, threading
blocks = [bytearray(i * 20011) for i in range(1, 80)]
for i, block in enumerate(blocks):
    block[-1] = i
    block.extend(b"x" * (i * 9973))
def work(seed):
    for i in range(60):
        kept = [bytes([seed]) * (i * 30011 + 1) for _ in range(4)]
        assert all(k[-1] == seed for k in kept)
threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
digest = hashlib.sha256()
for block in blocks: digest.update(block)
growing = []
for i in range(400000): growing.append(i)
memory = mmap.mmap(-1, 16 << 20)
memory[5 << 20] = 7
memory.madvise(mmap.MADV_DONTNEED)
print(memory[5 << 20], digest.hexdigest(), sum(growing), sys.getsizeof(growing))
memory.close()
print(subprocess.run(["sh", "-c", "echo child; exit 3"], capture_output=True))
END
"#,
    },
    Program {
        name: "git",
        needs: &["git"],
        script: r#"
export HOME="$PWD" GIT_CONFIG_NOSYSTEM=1
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
export GIT_AUTHOR_DATE="2020-01-01T00:00:00Z" GIT_COMMITTER_DATE="2020-01-01T00:00:00Z"
git init -q -b main it && cd it
seq 1 400000 > numbers
for i in 1 2 3 4 5 6 7 8; do seq $i 3 30000 > file$i; done
git add . && git commit -q -m one
seq 1 400001 > numbers && git commit -q -a -m two
git gc -q && git fsck && git log --stat
git repack -q -a -d -f --depth=5 && git count-objects && git cat-file -s HEAD:numbers
git diff HEAD~1 | cksum && git archive HEAD | cksum
"#,
    },
    Program {
        name: "gcc",
        needs: &["gcc"],
        script: r#"
{
    echo '#include <stdio.h>'
    for i in $(seq 300); do
        echo "static double f$i(double x) { double y = x; for (int i = 0; i < $i; i++)"
        echo "y = y * x + i; return y > 1e9 ? y / $i : y; }"
    done
    echo 'int main(void) { double s = 0;'
    for i in $(seq 300); do echo "s += f$i(0.5);"; done
    echo 'printf("%.6g\n", s); return 0; }'
} > x.c
gcc -O2 -g -c x.c -o x.o && cksum < x.o
gcc x.o -o x && ./x
echo 'int main(void) { return undeclared; }' > wrong.c
gcc wrong.c -o wrong || echo "status $?"
"#,
    },
    Program {
        name: "sqlite",
        needs: &["sqlite3"],
        script: r#"
sqlite3 :memory: <<'END'
create table t(id integer primary key, data blob);
with recursive n(i) as (select 1 union all select i + 1 from n where i < 60)
insert into t select i, zeroblob(i * 50021) from n;
update t set data = cast(data as text) || 'end' where id % 2;
create table s as select id, hex(substr(data, -4)) as tail, length(data) as size from t;
select count(*), sum(size) from s;
delete from t where id % 3 = 0;
vacuum;
select sum(length(data)) from t;
create table u(x);
with recursive n(i) as (select 1 union all select i + 1 from n where i < 100000)
insert into u select (i * 7919) % 100003 from n;
select sum(x) from (select x from u order by x limit 50000);
select length(group_concat(x)) from u;
END
"#,
    },
    Program {
        name: "perl",
        needs: &["perl"],
        script: r#"
perl -e '
my @blocks = map { chr(65 + $_ % 26) x ($_ * 40009) } 1 .. 60;
$_ .= "tail" x 50000 for @blocks;
my $sum = 0;
$sum += unpack("%32C*", $_) for @blocks;
my %seen = map { $_ => $_ * 2 } 1 .. 200000;
my @sorted = sort { $a <=> $b } values %seen;
my $joined = join ",", @sorted;
my $pid = fork;
if (!$pid) { @blocks = (); exit 4 }
waitpid $pid, 0;
print "$sum $sorted[-1] ", length $joined, " ", $? >> 8, "\n";
'
"#,
    },
    Program {
        name: "node",
        needs: &["node"],
        script: r#"
node -e '
const { createHash } = require("crypto");
const { execFileSync } = require("child_process");
const digest = createHash("sha256");
for (let i = 1; i < 120; i++) {
    const block = Buffer.alloc(i * 30011, i);
    digest.update(block);
    digest.update(Buffer.concat([block, block]));
}
let text = "";
for (let i = 0; i < 300000; i++) text += i;
const array = new Float64Array(3000000).fill(1.5);
console.log(digest.digest("hex"), text.length, array.reduce((a, b) => a + b, 0));
console.log(execFileSync("echo", ["child"]).toString());
'
"#,
    },
    Program {
        name: "java",
        needs: &["java", "javac"],
        script: r#"
cat > X.java <<'END'
import java.util.*;
public class X {
    public static void main(String[] arguments) throws Exception {
        long sum = 0;
        List<byte[]> kept = new ArrayList<>();
        for (int i = 1; i < 200; i++) {
            byte[] block = new byte[i * 20011];
            Arrays.fill(block, (byte) i);
            sum += block[block.length - 1];
            if (i % 10 == 0) kept.add(block);
        }
        Thread[] threads = new Thread[4];
        for (int t = 0; t < 4; t++) {
            threads[t] = new Thread(() -> {
                for (int i = 0; i < 50; i++) java.nio.ByteBuffer.allocateDirect(300000);
            });
            threads[t].start();
        }
        for (Thread thread : threads) thread.join();
        System.gc();
        for (byte[] block : kept) sum += block.length;
        System.out.println(sum);
    }
}
END
javac -J-Xmx128m X.java && java -Xmx128m X
"#,
    },
    Program {
        name: "redis",
        needs: &["redis-server", "redis-cli", "redis-benchmark"],
        script: r#"
redis-server --port 0 --unixsocket "$PWD/socket" --dir "$PWD" --save '' --appendonly no \
    --logfile "$PWD/log" &
server=$!
trap 'kill $server 2>/dev/null || true' EXIT
cli() { redis-cli -s "$PWD/socket" "$@"; }
for i in $(seq 300); do cli ping > /dev/null 2>&1 && break; sleep 0.1; done
for i in 1 2 3 4 5 6 7 8; do
    head -c $((i * 300007)) /dev/zero | cli -x set key$i
    cli append key$i tail
done
cli strlen key8 && cli setrange key1 5000000 end && cli getrange key1 -3 -1
redis-benchmark -s "$PWD/socket" -n 2000 -c 8 -d 200000 -q -t set,get > /dev/null
redis-benchmark -s "$PWD/socket" -n 20000 -c 8 -P 16 -q -t lpush,incr,hset > /dev/null
cli llen mylist && cli get counter:__rand_int__ && cli dbsize
cli bgsave > /dev/null
for i in $(seq 300); do cli info persistence | grep -q bgsave_in_progress:0 && break; sleep 0.1; done
cli info persistence | grep last_bgsave_status
cli flushall && cli dbsize
cli shutdown nosave || true
wait $server
"#,
    },
    Program {
        name: "shell",
        needs: &["sort", "tar", "gzip"],
        script: r#"
seq 1 300000 > numbers
sort -r numbers | tail -n 1
sort --parallel=4 -S 20M -n -r numbers | cksum
mkdir folder && cp numbers folder/a && (cd folder; split -n 7 a)
tar --sort=name --mtime=@0 --owner=0 --group=0 -cf - folder | gzip -n -9 | cksum
(exit 7) || echo "status $?"
env -i "$(command -v sh)" -c 'echo without an environment'
sh -c 'kill -TERM $$' || echo "status $?"
"#,
    },
];

fn main() -> ExitCode {
    run(|| {
        let trial = |program: &'static Program| {
            Trial::ignorable_test(program.name, move || same_as_without(program))
                .with_kind("thorough")
        };
        PROGRAMS.iter().map(trial).collect()
    })
}

fn same_as_without(program: &Program) -> Verdict {
    let absent = program.needs.iter().find(|tool| find(tool).is_none());
    if let Some(absent) = absent {
        return Ok(Completion::ignored_with(format!(
            "there is no {absent} here"
        )));
    }
    let folder = tempfile::tempdir()?;
    let without = Told::by(program, None, folder.path());
    if without.status != Some(0) {
        return Err(format!("alone: {without:?}").into());
    }
    for (name, options) in SETS {
        let with = Told::by(program, Some(options), folder.path());
        if (&with.stdout, &with.stderr, with.status)
            != (&without.stdout, &without.stderr, without.status)
        {
            return Err(format!("with {name}: {with:?}\nalone: {without:?}").into());
        }
        // With all options on, every program has a summary.
        let tells = with.summaries > 0;
        if tells && !options.contains(&STATS) || !tells && name == "all" {
            return Err(format!("with {name}: {} summaries", with.summaries).into());
        }
    }
    Ok(Completion::Completed)
}

/// The output and the status of a program.
#[derive(Debug)]
struct Told {
    stdout: String,
    /// Without the library's lines.
    stderr: String,
    status: Option<i32>,
    summaries: usize,
}

impl Told {
    fn by(program: &Program, options: Option<Options>, folder: &Path) -> Self {
        let script = folder.join("script");
        fs::write(&script, format!("set -eu\n{}", program.script)).unwrap();
        // The path is the same each time, because some outputs contain it.
        let work = folder.join("work");
        fs::create_dir(&work).unwrap();
        let mut shell = Command::new("sh");
        shell.arg(&script).current_dir(&work);
        shell.env("LC_ALL", "C").env("TMPDIR", &work);
        if let Some(options) = options {
            put_under(&mut shell, options, &[]);
        }
        let output = output_in_time(&mut shell);
        fs::remove_dir_all(&work).unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        let (ours, others): (Vec<&str>, Vec<&str>) = stderr
            .lines()
            .partition(|line| line.starts_with("tenure: "));
        Self {
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: others.join("\n"),
            status: output.status.code(),
            summaries: ours.len(),
        }
    }
}
