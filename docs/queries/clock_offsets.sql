-- How far are the clocks of the ranks apart, by each source that tells, and how sure is that?
-- Needs: Flight Recorder dumps, profiler traces or manifests of rankscope record.
select 'flight recorder' as told_by, rank, host, round(clock_offset_ns / 1e6, 3) + 0 as ahead_ms,
       round(clock_error_ns / 1e6, 3) as error_ms
from ranks
union all
select 'profiler', rank, host, round(offset_ns / 1e6, 3) + 0, round(error_ns / 1e6, 3)
from profile_clocks
union all
select 'collector', rank, host, round(clock_offset_ns / 1e6, 3) + 0, round(clock_error_ns / 1e6, 3)
from manifests
order by told_by, abs(ahead_ms) desc nulls last, rank
