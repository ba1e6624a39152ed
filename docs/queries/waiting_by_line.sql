-- Where is each rank now: at which lines do calls wait, and how many ranks are there? The odd ones come first.
-- Needs: Flight Recorder dumps of a hung job.
select file || ':' || line as place, function, op, group_desc, count(distinct rank) as n_ranks,
       list(distinct rank order by rank)[:8] as first_ranks
from collectives
left join frames on frame_id = site_id
where status <> 'done'
group by all
order by n_ranks, place, op, group_desc
