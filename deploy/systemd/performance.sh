#!/bin/sh
# Lets a machine's processors run as fast as they can, until it is started again: governor, turbo, and pages that stay
# where they are. Run it as root; `lsv doctor` shows how a machine is set.
set -eu
root=${ROOT:-}

# put VALUE FILE: where there is such a file, say so.
put() {
  if [ -w "$2" ]; then
    echo "$1" >"$2"
    echo "$2: $1"
  fi
}

for file in "$root"/sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor; do
  put performance "$file"
done
put 0 "$root/sys/devices/system/cpu/intel_pstate/no_turbo"
put 1 "$root/sys/devices/system/cpu/cpufreq/boost"
put 0 "$root/proc/sys/kernel/numa_balancing"
