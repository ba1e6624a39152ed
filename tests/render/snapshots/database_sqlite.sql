BEGIN TRANSACTION;
CREATE TABLE "group_members" ("group_id" INTEGER, "group_rank" INTEGER, "rank" INTEGER);
CREATE TABLE "metrics" ("file_id" INTEGER, "rank" INTEGER, "time_ns" INTEGER, "step" INTEGER, "name" TEXT, "value" REAL);
INSERT INTO "metrics" VALUES(NULL,0,9223372036854775807,1,'loss',0.5);
INSERT INTO "metrics" VALUES(NULL,1,NULL,NULL,'it''s "quoted", <b>
[2J‮',-2.25);
INSERT INTO "metrics" VALUES(NULL,2,NULL,NULL,NULL,NULL);
CREATE TABLE "ranks" ("rank" INTEGER, "host" TEXT, "file_id" INTEGER, "recorder" TEXT, "version" TEXT, "comm_version" TEXT, "n_calls" INTEGER, "n_dropped" INTEGER, "last_created_ns" INTEGER, "written_ns" INTEGER, "clock_offset_ns" INTEGER, "clock_error_ns" INTEGER);
INSERT INTO "ranks" VALUES(0,'NULL',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,NULL);
COMMIT;
