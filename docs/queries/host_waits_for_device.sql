-- Which calls make the host wait for the device, and how long is the device idle afterwards?
-- Needs: profiler traces with a device.
select name, operator, annotation, count(*) as n_ranks, sum(n) as n_calls, round(sum(total_ns) / 1e6, 3) as waited_ms,
       round(sum(idle_ns) / 1e6, 3) as device_idle_ms
from sync_calls
group by name, operator, annotation
order by device_idle_ms desc, waited_ms desc, name, operator
limit 20
