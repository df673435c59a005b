# Processes of the cluster, known by the pid and start time that were written down when they began. Sourced.

start_time() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d' ' -f20; }

pid_of() { cut -d' ' -f1 "$DIR/pids/$1" 2>/dev/null; }

# Runs, and is still the process that was started: pids are used again.
alive() {
    local pid time
    read -r pid time 2>/dev/null <"$DIR/pids/$1" || return 1
    [ "$(start_time "$pid")" = "$time" ] && [ "$(sed 's/.*) //' "/proc/$pid/stat" | cut -c1)" != Z ] \
        && tr '\0' ' ' <"/proc/$pid/cmdline" | grep -qF "$DIR/"
}

# start_process NAME COMMAND...: in the background, in the cluster's cgroup, its output in a log.
start_process() {
    local name=$1
    shift
    ! alive "$name" || return 0
    (
        echo "$BASHPID" >"$(tracker)/system/cgroup.procs"
        exec setsid "$@"
    ) >>"$DIR/log/$name.log" 2>&1 </dev/null &
    echo "$! $(start_time $!)" >"$DIR/pids/$name"
}

# end_process NAME [SIGNAL [SECONDS]]: returns when it is gone; killed when it takes too long.
end_process() {
    local name=$1 signal=${2:-TERM} seconds=${3:-20}
    alive "$name" || { rm -f "$DIR/pids/$name"; return 0; }
    kill "-$signal" "$(pid_of "$name")"
    for _ in $(seq $((seconds * 50))); do
        alive "$name" || { rm -f "$DIR/pids/$name"; return 0; }
        sleep 0.02
    done
    say "$name did not end within $seconds s of SIG$signal: killed"
    kill -KILL "$(pid_of "$name")"
    rm -f "$DIR/pids/$name"
}

# wait_for TENTHS-OF-SECONDS WHAT COMMAND...: until the command succeeds.
wait_for() {
    local tenths=$1 what=$2
    shift 2
    for _ in $(seq "$tenths"); do
        "$@" >/dev/null 2>&1 && return
        sleep 0.1
    done
    say "waited $((tenths / 10)) s for $what in vain; logs: $DIR/log"
    return 1
}
