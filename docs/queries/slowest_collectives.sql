-- Which collectives took longest, did they wait for a rank or for the network, and which rank joined last?
-- Needs: profiler traces of several ranks.
select step, comm_matches.op, coalesce("desc", name) as group_desc, seq, n_bytes, n_members,
       round((end_ns - start_ns) / 1e6, 3) as took_ms, round(wait_ns / 1e6, 3) as waited_ms,
       round(transfer_ns / 1e6, 3) as transfer_ms, round(bus_gbps, 1) as bus_gbps, last_rank
from comm_matches
left join comm_groups using (group_key)
order by took_ms desc, match_id
limit 20
