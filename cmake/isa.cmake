# Kernels for one instruction set live in files named *_avx512bf16.cc and so on and are compiled for it; files named
# *_each_isa.cc are compiled once for each set. The CPU chooses at run time (src/backend/cpu/isa.h). Such files include
# only <immintrin.h> and plain declarations, so that no inline function of a shared header is ever compiled for an
# instruction set that the machine may lack.
set(isas portable)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64|amd64")
  list(APPEND isas avx2 avx512 avx512bf16)
  set(avx2_flags -mavx2 -mfma -mf16c)
  set(avx512_flags ${avx2_flags} -mavx512f -mavx512bw -mavx512vl -mavx512dq)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # GCC's own AVX-512 headers trip these warnings (GCC bug 105593).
    list(APPEND avx512_flags -Wno-maybe-uninitialized -Wno-uninitialized)
  endif()
  set(avx512bf16_flags ${avx512_flags} -mavx512bf16 -mavx512vbmi)
  set(amx_flags ${avx512bf16_flags} -mamx-tile -mamx-bf16)
  foreach(isa avx2 avx512 avx512bf16 amx)
    file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/src/backend/cpu/*_${isa}.cc)
    set_source_files_properties(${sources} PROPERTIES COMPILE_OPTIONS "${${isa}_flags}")
  endforeach()
endif()

# A source is compiled for a set in an object library of the set; the names are those of `enum class Isa`.
set(portable_name kPortable)
set(avx2_name kAvx2)
set(avx512_name kAvx512)
set(avx512bf16_name kAvx512Bf16)
file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/src/backend/cpu/*_each_isa.cc)
foreach(isa ${isas})
  add_library(nanovllm_backend_${isa} OBJECT ${sources})
  target_link_libraries(nanovllm_backend_${isa} PRIVATE nanovllm_dependencies)
  target_compile_options(nanovllm_backend_${isa} PRIVATE ${${isa}_flags})
  target_compile_definitions(nanovllm_backend_${isa} PRIVATE NANOVLLM_ISA=${${isa}_name})
  # Merged, two files' kernels would share their vectors' names.
  set_target_properties(nanovllm_backend_${isa} PROPERTIES UNITY_BUILD OFF)
  target_sources(nanovllm_backend INTERFACE $<TARGET_OBJECTS:nanovllm_backend_${isa}>)
  list(APPEND NANOVLLM_LAYER_OBJECTS $<TARGET_OBJECTS:nanovllm_backend_${isa}>)
endforeach()

# A compiler that fuses multiplications and additions may do so in one tile size and not in another, and rounds otherwise
# than who defined a format.
set_source_files_properties(${CMAKE_CURRENT_SOURCE_DIR}/src/backend/cpu/linear/code_pack.cc
                            ${CMAKE_CURRENT_SOURCE_DIR}/src/backend/cpu/linear/code_unpack.cc
                            ${CMAKE_CURRENT_SOURCE_DIR}/src/backend/cpu/linear/linear_portable.cc
                            ${CMAKE_CURRENT_SOURCE_DIR}/src/io/ggml_blocks.cc
                            ${CMAKE_CURRENT_SOURCE_DIR}/src/io/rounded_matrix.cc PROPERTIES
  COMPILE_OPTIONS -ffp-contract=off)

# Where translation units are merged, the portable kernels stay alone as the others do, which CMake never merges because
# they have options of their own: they define the same names.
set_source_files_properties(${CMAKE_CURRENT_SOURCE_DIR}/src/backend/cpu/linear/linear_portable.cc PROPERTIES
  SKIP_UNITY_BUILD_INCLUSION ON)
