-- How far apart are the clocks of the ranks, according to each source, and how certain is that?
-- Needs: Flight Recorder dumps, profiler traces or manifests of rankscope record.
select 'flight recorder' as source, rank, host, round(clock_offset_ns / 1e6, 3) + 0 as ahead_ms,
       round(clock_error_ns / 1e6, 3) as error_ms
from ranks
union all
select 'profiler', rank, host, round(offset_ns / 1e6, 3) + 0, round(error_ns / 1e6, 3)
from profile_clocks
union all
select 'collector', rank, host, round(clock_offset_ns / 1e6, 3) + 0, round(clock_error_ns / 1e6, 3)
from manifests
order by source, abs(ahead_ms) desc nulls last, rank
