#!/bin/sh
# Says what `weft status` says, as soon as it knows of so many ranks what their peers did: looks.sh WEFT COUNT. A rank that waits for
# this command on a busy machine may answer late.
for try in 1 2 3 4 5 6 7 8 9 10; do
    said=$("$1" status)
    [ "$(printf '%s\n' "$said" | grep -c ' by peers: ')" -lt "$2" ] || break
    sleep 0.3
done
printf '%s\n' "$said"
