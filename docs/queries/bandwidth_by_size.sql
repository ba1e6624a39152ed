-- How fast does data move, by group, operation and size, once all members have joined?
-- Needs: profiler traces of several ranks.
select group_name, group_size, n_hosts, op, bucket_bytes, n_matches, round(transfer_ns / 1e3, 1) as median_us,
       round(bus_gbps, 1) as bus_gbps, round(slowest_gbps, 1) as slowest_gbps, round(fastest_gbps, 1) as fastest_gbps
from comm_bandwidth
order by group_size desc, group_name, op, bucket_bytes
