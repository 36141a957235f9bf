# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_tenure_global_optspecs
    string join \n h/help V/version
end

function __fish_tenure_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_tenure_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_tenure_using_subcommand
    set -l cmd (__fish_tenure_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c tenure -n "__fish_tenure_needs_command" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c tenure -n "__fish_tenure_needs_command" -s V -l version -d 'Print version'
complete -c tenure -n "__fish_tenure_needs_command" -f -a "bench" -d 'Measure tenure beside the older ways, on this machine\'s memory'
complete -c tenure -n "__fish_tenure_needs_command" -f -a "cache" -d 'Show and remove what processes share by name'
complete -c tenure -n "__fish_tenure_needs_command" -f -a "doctor" -d 'Tell what this kernel, container and their limits allow tenure to do'
complete -c tenure -n "__fish_tenure_needs_command" -f -a "evict" -d 'Drop files from the page cache'
complete -c tenure -n "__fish_tenure_needs_command" -f -a "exporter" -d 'Serve the figures of tenure stat to Prometheus'
complete -c tenure -n "__fish_tenure_needs_command" -f -a "fincore" -d 'Show what of files is in the page cache, and where'
complete -c tenure -n "__fish_tenure_needs_command" -f -a "keep" -d 'Keep what is used of files in memory'
complete -c tenure -n "__fish_tenure_needs_command" -f -a "report" -d 'Make one page of what `tenure bench --json` has printed'
complete -c tenure -n "__fish_tenure_needs_command" -f -a "restore" -d 'Read the ranges of a snapshot into the page cache'
complete -c tenure -n "__fish_tenure_needs_command" -f -a "run" -d 'Run a program with tenure under it'
complete -c tenure -n "__fish_tenure_needs_command" -f -a "snapshot" -d 'Record which ranges of files are in the page cache'
complete -c tenure -n "__fish_tenure_needs_command" -f -a "stat" -d 'Show how much memory processes or a cgroup really use'
complete -c tenure -n "__fish_tenure_needs_command" -f -a "top" -d 'Show processes by what their memory is, full-screen'
complete -c tenure -n "__fish_tenure_needs_command" -f -a "warm" -d 'Read what is missing of files into the page cache'
complete -c tenure -n "__fish_tenure_needs_command" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c tenure -n "__fish_tenure_using_subcommand bench" -l rounds -d 'Measure exactly N rounds [default: 11, 41 of short ones, or as many as there is time for, but at least 3; with --quick 5, and at least 2]' -r
complete -c tenure -n "__fish_tenure_using_subcommand bench" -l only -d 'Run only these of all experiments, in the order of the list, in the sizes that they have among all' -r -f -a "populate\t'Fault a fresh mapping in, whole'
lock\t'Read a mapped file at random while what was read stays locked'
lazy_free\t'Take a block, copy into it, search in it, free it, under a memory limit'
volatile\t'Refill buffers that the kernel may purge between two uses'
release\t'Unmap or discard memory: how long does the caller wait, and everybody else?'
heap\t'Make and free blocks with one malloc and another'
pool\t'Populate from pages that were released before; runs only if it is named'
cache\t'Look values up in caches, also below a memory limit; runs only if it is named'"
complete -c tenure -n "__fish_tenure_using_subcommand bench" -l record -d 'Write the JSON document to FILE as well: a record for `tenure report`' -r -F
complete -c tenure -n "__fish_tenure_using_subcommand bench" -l seed -d 'Make the random contents and offsets from N' -r
complete -c tenure -n "__fish_tenure_using_subcommand bench" -l quick -d 'Use sizes and rounds that let all six experiments end within a minute on 2 CPUs and 24 GiB. Without the option they end within ten. An experiment that is asked for by name shows more: populate its full sizes, in about 6 minutes; lazy_free all numbers of processes and threads, in about 9; volatile threads, sizes up to 1 GiB and 100,000 others beside a page, in about 5; release sizes up to 8 GiB, huge pages, ways and a process that is killed, in about 5; heap more rounds and blocks of all sizes, in about 10'
complete -c tenure -n "__fish_tenure_using_subcommand bench" -l full -d 'Use the sizes of the reference: populate measures 2 MiB, 128 MiB and 4 GiB of every kind of memory, in every way, in about 6 minutes; lock makes 15,000,000 reads in 5 GiB, in about 10; lazy_free has 512 chunks in each process and a limit of 2 GiB, in about 15; volatile refills its memory 100 times, in about 12; release goes up to three quarters of the memory there is, with up to 32 threads, in about 15 on 24 GiB; heap counts for longer, and has blocks of all sizes, in about 25. The largest have one to three rounds, unless --rounds says more'
complete -c tenure -n "__fish_tenure_using_subcommand bench" -l json -d 'Print one JSON document and nothing else on standard output'
complete -c tenure -n "__fish_tenure_using_subcommand bench" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c tenure -n "__fish_tenure_using_subcommand cache; and not __fish_seen_subcommand_from list drop help" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c tenure -n "__fish_tenure_using_subcommand cache; and not __fish_seen_subcommand_from list drop help" -f -a "list" -d 'List this user\'s caches and arenas'
complete -c tenure -n "__fish_tenure_using_subcommand cache; and not __fish_seen_subcommand_from list drop help" -f -a "drop" -d 'Remove names that no process uses'
complete -c tenure -n "__fish_tenure_using_subcommand cache; and not __fish_seen_subcommand_from list drop help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c tenure -n "__fish_tenure_using_subcommand cache; and __fish_seen_subcommand_from list" -l json -d 'Print one JSON document and nothing else on standard output'
complete -c tenure -n "__fish_tenure_using_subcommand cache; and __fish_seen_subcommand_from list" -s h -l help -d 'Print help'
complete -c tenure -n "__fish_tenure_using_subcommand cache; and __fish_seen_subcommand_from drop" -s h -l help -d 'Print help'
complete -c tenure -n "__fish_tenure_using_subcommand cache; and __fish_seen_subcommand_from help" -f -a "list" -d 'List this user\'s caches and arenas'
complete -c tenure -n "__fish_tenure_using_subcommand cache; and __fish_seen_subcommand_from help" -f -a "drop" -d 'Remove names that no process uses'
complete -c tenure -n "__fish_tenure_using_subcommand cache; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c tenure -n "__fish_tenure_using_subcommand doctor" -l json -d 'Print one JSON document and nothing else on standard output'
complete -c tenure -n "__fish_tenure_using_subcommand doctor" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c tenure -n "__fish_tenure_using_subcommand evict" -l include -d 'In folders, take only files that match: a pattern such as \'*.safetensors\', or with a slash for the path below the folder. May be repeated' -r
complete -c tenure -n "__fish_tenure_using_subcommand evict" -l exclude -d 'In folders, leave out files and folders that match. May be repeated; of two patterns that match, --exclude counts' -r
complete -c tenure -n "__fish_tenure_using_subcommand evict" -l range -d 'Drop only this range of bytes of each file: START..END, such as 1G..2G or ..64M' -r
complete -c tenure -n "__fish_tenure_using_subcommand evict" -s L -l follow -d 'In folders, follow symbolic links. Without it they are left out; a PATH that is a symbolic link is always followed'
complete -c tenure -n "__fish_tenure_using_subcommand evict" -s x -l one-file-system -d 'Stay on the file system of each PATH'
complete -c tenure -n "__fish_tenure_using_subcommand evict" -l if-cold -d 'Leave files that a process has open or mapped'
complete -c tenure -n "__fish_tenure_using_subcommand evict" -l json -d 'Print one JSON document at the end and nothing else on standard output'
complete -c tenure -n "__fish_tenure_using_subcommand evict" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c tenure -n "__fish_tenure_using_subcommand exporter" -l cgroup -d 'A memory cgroup to show, as for tenure stat; may be repeated' -r -F
complete -c tenure -n "__fish_tenure_using_subcommand exporter" -l listen -d 'The address and port to listen on, an IPv6 address in brackets; port 0 is one that is free' -r
complete -c tenure -n "__fish_tenure_using_subcommand exporter" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c tenure -n "__fish_tenure_using_subcommand fincore" -l include -d 'In folders, take only files that match: a pattern such as \'*.safetensors\', or with a slash for the path below the folder. May be repeated' -r
complete -c tenure -n "__fish_tenure_using_subcommand fincore" -l exclude -d 'In folders, leave out files and folders that match. May be repeated; of two patterns that match, --exclude counts' -r
complete -c tenure -n "__fish_tenure_using_subcommand fincore" -l top -d 'Show only the N files with the most resident pages, most first' -r
complete -c tenure -n "__fish_tenure_using_subcommand fincore" -l depth -d 'Show a sum for each folder down to N levels below each PATH' -r
complete -c tenure -n "__fish_tenure_using_subcommand fincore" -s L -l follow -d 'In folders, follow symbolic links. Without it they are left out; a PATH that is a symbolic link is always followed'
complete -c tenure -n "__fish_tenure_using_subcommand fincore" -s x -l one-file-system -d 'Stay on the file system of each PATH'
complete -c tenure -n "__fish_tenure_using_subcommand fincore" -s s -l summarize -d 'Show only the sums'
complete -c tenure -n "__fish_tenure_using_subcommand fincore" -l json -d 'Print one JSON document and nothing else on standard output. Figures that the kernel does not tell are null; "blocks" has the resident share of each of 40 equal parts of a file, in percent, where they differ'
complete -c tenure -n "__fish_tenure_using_subcommand fincore" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c tenure -n "__fish_tenure_using_subcommand keep" -l include -d 'In folders, take only files that match: a pattern such as \'*.safetensors\', or with a slash for the path below the folder. May be repeated' -r
complete -c tenure -n "__fish_tenure_using_subcommand keep" -l exclude -d 'In folders, leave out files and folders that match. May be repeated; of two patterns that match, --exclude counts' -r
complete -c tenure -n "__fish_tenure_using_subcommand keep" -l budget -d 'Keep SIZE at most. SIZE is in bytes, or ends in K, M, G or T' -r
complete -c tenure -n "__fish_tenure_using_subcommand keep" -s L -l follow -d 'In folders, follow symbolic links. Without it they are left out; a PATH that is a symbolic link is always followed'
complete -c tenure -n "__fish_tenure_using_subcommand keep" -s x -l one-file-system -d 'Stay on the file system of each PATH'
complete -c tenure -n "__fish_tenure_using_subcommand keep" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c tenure -n "__fish_tenure_using_subcommand report" -s o -l output -d 'Write to PAGE and print that path, instead of writing to standard output' -r -F
complete -c tenure -n "__fish_tenure_using_subcommand report" -l markdown -d 'Make Markdown instead of HTML: the sentences and the tables, without plots'
complete -c tenure -n "__fish_tenure_using_subcommand report" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c tenure -n "__fish_tenure_using_subcommand restore" -l budget -d 'Read SIZE at most. SIZE is in bytes, or ends in K, M, G or T' -r
complete -c tenure -n "__fish_tenure_using_subcommand restore" -l json -d 'Print one JSON document at the end and nothing else on standard output'
complete -c tenure -n "__fish_tenure_using_subcommand restore" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c tenure -n "__fish_tenure_using_subcommand run" -l heap -d 'Serve malloc and its relatives from tenure\'s heap' -r
complete -c tenure -n "__fish_tenure_using_subcommand run" -l heap-threshold -d 'Serve requests of SIZE and more from tenure\'s heap; turns the heap on' -r
complete -c tenure -n "__fish_tenure_using_subcommand run" -l heap-dirty-decay -d 'Keep free pages so long before the kernel may reclaim them; turns the heap on' -r
complete -c tenure -n "__fish_tenure_using_subcommand run" -l heap-muzzy-decay -d 'Return lazily freed pages to the kernel after so long; turns the heap on' -r
complete -c tenure -n "__fish_tenure_using_subcommand run" -l munmap -d 'Unmap large anonymous memory at once for the caller; free its pages behind it' -r
complete -c tenure -n "__fish_tenure_using_subcommand run" -l discard -d 'Have madvise(MADV_DONTNEED) return at once; free the pages behind it' -r
complete -c tenure -n "__fish_tenure_using_subcommand run" -l lock -d 'Lock all memory, each page on its first use' -r
complete -c tenure -n "__fish_tenure_using_subcommand run" -l populate -d 'Fault private anonymous mappings of SIZE and more in when they are made' -r
complete -c tenure -n "__fish_tenure_using_subcommand run" -l pool -d 'Keep SIZE of zeroed memory ready for --populate' -r
complete -c tenure -n "__fish_tenure_using_subcommand run" -l pool-released -d 'Let what --munmap and --discard free become memory of --pool' -r
complete -c tenure -n "__fish_tenure_using_subcommand run" -l exit -d 'Let the process\'s end be seen before its memory is freed' -r
complete -c tenure -n "__fish_tenure_using_subcommand run" -l sqlite-cache -d 'Have SQLite keep pages for as long as there is memory, whatever cache_size is' -r
complete -c tenure -n "__fish_tenure_using_subcommand run" -l stats -d 'Print a summary to standard error when a program ends' -r
complete -c tenure -n "__fish_tenure_using_subcommand run" -l verbose -d 'Print one line to standard error when a program begins: the options in effect' -r
complete -c tenure -n "__fish_tenure_using_subcommand run" -l config -d 'Take options from FILE; those of the command line win' -r -F
complete -c tenure -n "__fish_tenure_using_subcommand run" -l print-environment -d 'Print the environment that COMMAND would get, and run nothing' -r -f -a "shell\t'Commands of a POSIX shell'
systemd\t'Lines of a unit, below its section Service'
pod\t'A container\'s env in YAML'"
complete -c tenure -n "__fish_tenure_using_subcommand run" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c tenure -n "__fish_tenure_using_subcommand snapshot" -l include -d 'In folders, take only files that match: a pattern such as \'*.safetensors\', or with a slash for the path below the folder. May be repeated' -r
complete -c tenure -n "__fish_tenure_using_subcommand snapshot" -l exclude -d 'In folders, leave out files and folders that match. May be repeated; of two patterns that match, --exclude counts' -r
complete -c tenure -n "__fish_tenure_using_subcommand snapshot" -s L -l follow -d 'In folders, follow symbolic links. Without it they are left out; a PATH that is a symbolic link is always followed'
complete -c tenure -n "__fish_tenure_using_subcommand snapshot" -s x -l one-file-system -d 'Stay on the file system of each PATH'
complete -c tenure -n "__fish_tenure_using_subcommand snapshot" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c tenure -n "__fish_tenure_using_subcommand stat" -l cgroup -d 'Show a memory cgroup, version 1 or 2, and the processes in it and below: a folder, or a path as in /proc/PID/cgroup. "working set" is usage without the inactive file list, as kubelet computes it. "lazily free" is the sum over the processes, unknown where one of them may not be read; the cgroup\'s own figures count these pages as anonymous memory and, on the kernel\'s lists, as inactive file pages' -r -F
complete -c tenure -n "__fish_tenure_using_subcommand stat" -l output -d 'Write the same to FILE, in the older text format of Prometheus, for the textfile collector of node_exporter: another file beside it is written and renamed. It is also written where the processes have ended, without their figures' -r -F
complete -c tenure -n "__fish_tenure_using_subcommand stat" -l watch -d 'Repeat every SECONDS, in place on a terminal, until the processes have ended or the cgroup is gone (then the exit status is 0), or Ctrl-C' -r
complete -c tenure -n "__fish_tenure_using_subcommand stat" -l json -d 'Print JSON and nothing else on standard output: one document, or with --watch one on each line. Figures that the kernel does not report are null; reserved_bytes are addresses without any access (PROT_NONE), which use no memory and are left out of mapped_bytes'
complete -c tenure -n "__fish_tenure_using_subcommand stat" -l openmetrics -d 'Print OpenMetrics text and nothing else on standard output: for Prometheus. Without PID and --cgroup it has this user\'s processes that use tenure; as root, those of all users. Figures that are unknown have no sample; tenure_scrape_errors counts what could not be read, and tenure_target_up is 0 for a process or cgroup that is not there'
complete -c tenure -n "__fish_tenure_using_subcommand stat" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c tenure -n "__fish_tenure_using_subcommand top" -l cgroup -d 'Show the processes of a memory cgroup, as for tenure stat' -r -F
complete -c tenure -n "__fish_tenure_using_subcommand top" -l interval -d 'The time between two readings' -r
complete -c tenure -n "__fish_tenure_using_subcommand top" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c tenure -n "__fish_tenure_using_subcommand warm" -l include -d 'In folders, take only files that match: a pattern such as \'*.safetensors\', or with a slash for the path below the folder. May be repeated' -r
complete -c tenure -n "__fish_tenure_using_subcommand warm" -l exclude -d 'In folders, leave out files and folders that match. May be repeated; of two patterns that match, --exclude counts' -r
complete -c tenure -n "__fish_tenure_using_subcommand warm" -l budget -d 'Read SIZE at most, of the first files. SIZE is in bytes, or ends in K, M, G or T' -r
complete -c tenure -n "__fish_tenure_using_subcommand warm" -l range -d 'Read only this range of bytes of each file: START..END, such as 1G..2G or ..64M' -r
complete -c tenure -n "__fish_tenure_using_subcommand warm" -l readers -d 'Read with so many threads' -r
complete -c tenure -n "__fish_tenure_using_subcommand warm" -s L -l follow -d 'In folders, follow symbolic links. Without it they are left out; a PATH that is a symbolic link is always followed'
complete -c tenure -n "__fish_tenure_using_subcommand warm" -s x -l one-file-system -d 'Stay on the file system of each PATH'
complete -c tenure -n "__fish_tenure_using_subcommand warm" -l json -d 'Print one JSON document at the end and nothing else on standard output'
complete -c tenure -n "__fish_tenure_using_subcommand warm" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c tenure -n "__fish_tenure_using_subcommand help; and not __fish_seen_subcommand_from bench cache doctor evict exporter fincore keep report restore run snapshot stat top warm help" -f -a "bench" -d 'Measure tenure beside the older ways, on this machine\'s memory'
complete -c tenure -n "__fish_tenure_using_subcommand help; and not __fish_seen_subcommand_from bench cache doctor evict exporter fincore keep report restore run snapshot stat top warm help" -f -a "cache" -d 'Show and remove what processes share by name'
complete -c tenure -n "__fish_tenure_using_subcommand help; and not __fish_seen_subcommand_from bench cache doctor evict exporter fincore keep report restore run snapshot stat top warm help" -f -a "doctor" -d 'Tell what this kernel, container and their limits allow tenure to do'
complete -c tenure -n "__fish_tenure_using_subcommand help; and not __fish_seen_subcommand_from bench cache doctor evict exporter fincore keep report restore run snapshot stat top warm help" -f -a "evict" -d 'Drop files from the page cache'
complete -c tenure -n "__fish_tenure_using_subcommand help; and not __fish_seen_subcommand_from bench cache doctor evict exporter fincore keep report restore run snapshot stat top warm help" -f -a "exporter" -d 'Serve the figures of tenure stat to Prometheus'
complete -c tenure -n "__fish_tenure_using_subcommand help; and not __fish_seen_subcommand_from bench cache doctor evict exporter fincore keep report restore run snapshot stat top warm help" -f -a "fincore" -d 'Show what of files is in the page cache, and where'
complete -c tenure -n "__fish_tenure_using_subcommand help; and not __fish_seen_subcommand_from bench cache doctor evict exporter fincore keep report restore run snapshot stat top warm help" -f -a "keep" -d 'Keep what is used of files in memory'
complete -c tenure -n "__fish_tenure_using_subcommand help; and not __fish_seen_subcommand_from bench cache doctor evict exporter fincore keep report restore run snapshot stat top warm help" -f -a "report" -d 'Make one page of what `tenure bench --json` has printed'
complete -c tenure -n "__fish_tenure_using_subcommand help; and not __fish_seen_subcommand_from bench cache doctor evict exporter fincore keep report restore run snapshot stat top warm help" -f -a "restore" -d 'Read the ranges of a snapshot into the page cache'
complete -c tenure -n "__fish_tenure_using_subcommand help; and not __fish_seen_subcommand_from bench cache doctor evict exporter fincore keep report restore run snapshot stat top warm help" -f -a "run" -d 'Run a program with tenure under it'
complete -c tenure -n "__fish_tenure_using_subcommand help; and not __fish_seen_subcommand_from bench cache doctor evict exporter fincore keep report restore run snapshot stat top warm help" -f -a "snapshot" -d 'Record which ranges of files are in the page cache'
complete -c tenure -n "__fish_tenure_using_subcommand help; and not __fish_seen_subcommand_from bench cache doctor evict exporter fincore keep report restore run snapshot stat top warm help" -f -a "stat" -d 'Show how much memory processes or a cgroup really use'
complete -c tenure -n "__fish_tenure_using_subcommand help; and not __fish_seen_subcommand_from bench cache doctor evict exporter fincore keep report restore run snapshot stat top warm help" -f -a "top" -d 'Show processes by what their memory is, full-screen'
complete -c tenure -n "__fish_tenure_using_subcommand help; and not __fish_seen_subcommand_from bench cache doctor evict exporter fincore keep report restore run snapshot stat top warm help" -f -a "warm" -d 'Read what is missing of files into the page cache'
complete -c tenure -n "__fish_tenure_using_subcommand help; and not __fish_seen_subcommand_from bench cache doctor evict exporter fincore keep report restore run snapshot stat top warm help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c tenure -n "__fish_tenure_using_subcommand help; and __fish_seen_subcommand_from cache" -f -a "list" -d 'List this user\'s caches and arenas'
complete -c tenure -n "__fish_tenure_using_subcommand help; and __fish_seen_subcommand_from cache" -f -a "drop" -d 'Remove names that no process uses'
