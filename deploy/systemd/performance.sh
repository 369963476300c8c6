#!/bin/sh
# Lets a machine's processors and Intel GPUs run as fast as they can, until it is started again: governor, turbo, pages
# that stay where they are, and clocks. Run it as root; `lsv doctor` shows how a machine is set.
set -eu
root=${ROOT:-}

# put VALUE FILE: where there is such a file and the kernel takes the value, say so.
put() {
  if [ -w "$2" ] && echo "$1" >"$2"; then
    echo "$2: $1"
  fi
}

# hold FASTEST FILE…: where there is a file FASTEST with a card's highest clock in MHz, request it by all FILEs.
hold() {
  [ -r "$1" ] || return 0
  clock=$(cat "$1")
  shift
  for file; do
    put "$clock" "$file"
  done
}

for file in "$root"/sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor; do
  put performance "$file"
done
put 0 "$root/sys/devices/system/cpu/intel_pstate/no_turbo"
put 1 "$root/sys/devices/system/cpu/cpufreq/boost"
put 0 "$root/proc/sys/kernel/numa_balancing"

# The kernel refuses a lowest clock above the highest one, so the highest is first.
for clocks in "$root"/sys/class/drm/card[0-9]*/device/tile[0-9]*/gt[0-9]*/freq0; do # xe
  hold "$clocks/rp0_freq" "$clocks/max_freq" "$clocks/min_freq"
done
for clocks in "$root"/sys/class/drm/card[0-9]*/gt/gt[0-9]*; do # i915
  hold "$clocks/rps_RP0_freq_mhz" "$clocks/rps_max_freq_mhz" "$clocks/rps_boost_freq_mhz" "$clocks/rps_min_freq_mhz"
done
for card in "$root"/sys/class/drm/card[0-9]*; do # i915 before Linux 5.18, and tile 0 of later ones
  hold "$card/gt_RP0_freq_mhz" "$card/gt_max_freq_mhz" "$card/gt_boost_freq_mhz" "$card/gt_min_freq_mhz"
done
