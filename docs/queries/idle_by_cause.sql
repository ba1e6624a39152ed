-- How long was each device idle, and what did the next kernel wait for?
-- Needs: profiler traces with a device.
select rank, device, cause, count(*) as n_gaps, round(sum(duration_ns) / 1e6, 3) as idle_ms,
       round(100 * sum(duration_ns) / sum(sum(duration_ns)) over (partition by rank, device), 1) as share_pct,
       round(max(duration_ns) / 1e6, 3) as longest_ms
from idle_gaps
group by rank, device, cause
order by rank, device, idle_ms desc
