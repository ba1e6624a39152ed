-- Which rank makes its calls later than the others in its group, how often, and how late? Clocks are aligned.
-- Needs: Flight Recorder dumps.
with arrivals as (
    select match_id, rank, created_ns - coalesce(clock_offset_ns, 0) as at_ns
    from collectives join ranks using (rank)
    where match_id is not null and not is_p2p
    qualify count(*) over (partition by match_id) > 1
), lateness as (
    select rank, at_ns - median(at_ns) over (partition by match_id) as late_ns,
           row_number() over (partition by match_id order by at_ns desc, rank) = 1 as is_last
    from arrivals
)
select rank, count(*) as n_calls, count(*) filter (where is_last) as n_last,
       round(median(late_ns) / 1e6, 3) as median_late_ms, round(max(late_ns) / 1e6, 3) as max_late_ms
from lateness
group by rank
order by median_late_ms desc, n_last desc, rank
limit 20
